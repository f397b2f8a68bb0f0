package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"
)

const (
	askEvery       = 200 * time.Millisecond // between two questions for one order
	askTimeout     = 2 * time.Second        // of one question
	replyBytesMost = 64 << 10
)

var errNoClock = errors.New("the exchange does not say what time it is")

// order is what is submitted. See doc.go for ValidUntilMS.
type order struct {
	ClientOrderID string `json:"client_order_id"`
	Symbol        string `json:"symbol"`
	Side          string `json:"side"`
	Quantity      string `json:"quantity"`
	ValidUntilMS  int64  `json:"valid_until_ms"` // on the exchange's clock
}

// fill is an order that the exchange has accepted and filled.
type fill struct {
	OrderID       int64  `json:"order_id"`
	ClientOrderID string `json:"client_order_id"`
	Symbol        string `json:"symbol"`
	Side          string `json:"side"`
	Quantity      string `json:"quantity"`
	FilledAtMS    int64  `json:"filled_at_ms"`
}

// outcome is what is known of a submission.
type outcome int

const (
	unknown   outcome = iota // it may be filled, now or later
	filled                   // it is filled
	rejected                 // the exchange has said no, and that is final
	notPlaced                // it did not get there, and never will
)

func (o outcome) String() string {
	return [...]string{"unknown", "filled", "rejected", "not placed"}[o]
}

// result is an outcome with what belongs to it.
type result struct {
	outcome outcome
	fill    fill  // if it is filled
	err     error // why it is not
}

// venue is an exchange in one mode, by its HTTP API. It may be used by several
// goroutines at once.
type venue struct {
	url      string
	validFor time.Duration // of an order, from the reading of the exchange's clock
	lag      time.Duration // after which lookups show what was accepted
	http     *http.Client
}

func newVenue(url string, validFor, lag time.Duration) *venue {
	return &venue{url: url, validFor: validFor, lag: lag, http: &http.Client{
		// To follow a 307 or 308 is to submit twice.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext:     (&net.Dialer{Timeout: askTimeout}).DialContext,
			MaxConnsPerHost: 64, MaxIdleConnsPerHost: 16, IdleConnTimeout: 30 * time.Second,
		},
	}}
}

// place submits an order, once, and says what came of it. remaining is how long the
// caller owns the right to. The outcome is unknown only when ctx has ended.
func (v *venue) place(ctx context.Context, o order, remaining func() time.Duration) result {
	now, err := v.clock(ctx)
	if err != nil {
		return result{outcome: notPlaced, err: err}
	}
	// Looked at after the reading: what the reading took is gone from what remains.
	if left := remaining(); left < 2*v.validFor+v.lag {
		return result{outcome: notPlaced, err: fmt.Errorf("too late to submit it: %v are left", left)}
	}
	o.ValidUntilMS = now + v.validFor.Milliseconds()
	r := v.submit(ctx, o)
	if r.outcome != unknown {
		return r
	}
	return v.findOut(ctx, o, r.err)
}

// submit sends an order. It waits for the reply for as long as the order is valid.
func (v *venue) submit(ctx context.Context, o order) result {
	ctx, cancel := context.WithTimeout(ctx, v.validFor)
	defer cancel()
	var reply struct {
		Success *bool  `json:"success"`
		Error   string `json:"error"`
		Order   *fill  `json:"order"`
	}
	err := v.call(ctx, http.MethodPost, "/orders", o, &reply)
	var failed *net.OpError
	switch {
	case errors.As(err, &failed) && failed.Op == "dial":
		return result{outcome: notPlaced, err: err} // there was no connection to send it on
	case err != nil:
		return result{outcome: unknown, err: err}
	case reply.Success != nil && *reply.Success && reply.Order != nil && reply.Order.ClientOrderID == o.ClientOrderID:
		return result{outcome: filled, fill: *reply.Order}
	case reply.Success != nil && !*reply.Success:
		return result{outcome: rejected, err: errors.New(reply.Error)}
	}
	return result{outcome: unknown, err: errors.New("the reply says neither yes nor no")}
}

// findOut asks for an order whose reply did not come, until it is there, or it is certain
// that it never will be, or ctx ends. why is what went wrong with the submission.
func (v *venue) findOut(ctx context.Context, o order, why error) result {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		found, now, err := v.find(ctx, o.ClientOrderID)
		switch {
		case err == nil && found != nil:
			return result{outcome: filled, fill: *found}
		case err == nil && now >= o.ValidUntilMS+v.lag.Milliseconds():
			return result{outcome: notPlaced, err: fmt.Errorf("it was not accepted in time: %w", why)}
		}
		select {
		case <-ctx.Done():
			return result{outcome: unknown, err: errors.Join(why, err)}
		case <-ticker.C:
		}
	}
}

// find returns what the exchange has under a client order id, nil where it has nothing,
// and its clock at the look.
func (v *venue) find(ctx context.Context, clientOrderID string) (found *fill, nowMS int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var answer struct {
		NowMS int64 `json:"now_ms"`
		Order *fill `json:"order"`
	}
	err = v.call(ctx, http.MethodGet, "/orders?client_order_id="+url.QueryEscape(clientOrderID), nil, &answer)
	switch {
	case err != nil:
		return nil, 0, err
	case answer.NowMS == 0:
		return nil, 0, errNoClock
	case answer.Order != nil && answer.Order.ClientOrderID != clientOrderID:
		return nil, 0, fmt.Errorf("the exchange answers with the order %q", answer.Order.ClientOrderID)
	}
	return answer.Order, answer.NowMS, nil
}

// clock reads the exchange's clock, in milliseconds since 1970.
func (v *venue) clock(ctx context.Context) (nowMS int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var answer struct {
		NowMS int64 `json:"now_ms"`
	}
	err = v.call(ctx, http.MethodGet, "/time", nil, &answer)
	if err == nil && answer.NowMS == 0 {
		err = errNoClock
	}
	return answer.NowMS, err
}

// call makes one call. Do not give it a header Idempotency-Key: net/http takes that for
// the permission to send a request again by itself, and this exchange does not know it.
func (v *venue) call(ctx context.Context, method, path string, what, into any) error {
	var body io.Reader
	if what != nil {
		text, err := json.Marshal(what)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	request, err := http.NewRequestWithContext(ctx, method, v.url+path, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := v.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: the exchange answered %d", method, path, response.StatusCode)
	}
	content, err := io.ReadAll(io.LimitReader(response.Body, replyBytesMost))
	if err != nil {
		return err
	}
	return json.Unmarshal(content, into)
}
