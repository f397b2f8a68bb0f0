package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// bodyBytesMost is how large an alert may be. Chart services send a few hundred bytes.
const bodyBytesMost = 64 << 10

// alert is what a chart service wants: what to trade, and where. Whatever else its
// sender says is left to itself.
type alert struct {
	Exchange, Mode, Symbol, Action, Quantity string
}

// venue names where the order goes: an exchange in one mode.
func (a alert) venue() string { return a.Exchange + ":" + a.Mode }

// The forms of an alert's members, in JSON. What has another one is refused: an order is
// made of what was meant, and not of a guess.
var (
	exchangeForm = regexp.MustCompile(`^"[a-z0-9-]{1,32}"$`)
	modeForm     = regexp.MustCompile(`^"(live|test)"$`)
	symbolForm   = regexp.MustCompile(`^"[A-Z0-9][A-Z0-9:!._-]{0,31}"$`)
	actionForm   = regexp.MustCompile(`^"(buy|sell)"$`)
	quantityForm = regexp.MustCompile(`^(0|[1-9][0-9]{0,14})(\.[0-9]{1,10})?$`) // a number, not a text
)

// parseAlert reads an alert. Names count letter by letter, as they do for the key that is
// made of them: encoding/json would take "Symbol" for "symbol", and the order would be
// another one than its key says.
func parseAlert(body []byte) (alert, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		return alert{}, errors.New("the body is no JSON object")
	}
	var a alert
	for _, member := range []struct {
		name string
		form *regexp.Regexp
		into *string
	}{
		{"exchange", exchangeForm, &a.Exchange},
		{"mode", modeForm, &a.Mode},
		{"symbol", symbolForm, &a.Symbol},
		{"action", actionForm, &a.Action},
		{"quantity", quantityForm, &a.Quantity},
	} {
		text := string(members[member.name])
		if !member.form.MatchString(text) {
			return alert{}, fmt.Errorf("%q is missing, or does not match %s", member.name, member.form)
		}
		*member.into = strings.Trim(text, `"`)
	}
	if strings.Trim(a.Quantity, "0.") == "" {
		return alert{}, errors.New(`"quantity" is zero`)
	}
	return a, nil
}

// incoming is what is known of a request before it is admitted.
type incoming struct {
	account string
	alert   alert
}

type incomingKey struct{}

func incomingOf(ctx context.Context) incoming {
	in, _ := ctx.Value(incomingKey{}).(incoming)
	return in
}

// identified finds out who sends the request, and what it orders. Everything after it
// has both from its context.
func (g *gateway) identified(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// Looked up by its hash: how long that takes tells nobody anything of a token.
		account, known := g.accounts[sha256.Sum256([]byte(token))]
		if !known {
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "UNAUTHENTICATED", "send Authorization: Bearer and a token that is known")
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyBytesMost))
		if over := (*http.MaxBytesError)(nil); errors.As(err, &over) {
			refuse(w, http.StatusRequestEntityTooLarge, "ALERT_TOO_LARGE", "an alert has at most "+strconv.Itoa(bodyBytesMost)+" bytes")
			return
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, "ALERT_INVALID", "the body ended before it was complete")
			return
		}
		a, err := parseAlert(body)
		if err != nil {
			refuse(w, http.StatusBadRequest, "ALERT_INVALID", err.Error())
			return
		}
		if g.venues[a.venue()] == nil {
			refuse(w, http.StatusBadRequest, "VENUE_UNKNOWN", "there is no venue "+a.venue())
			return
		}
		r = r.WithContext(context.WithValue(r.Context(), incomingKey{}, incoming{account, a}))
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}

// bounded lets so many requests in at a time, and no more. An alert that waits for an
// exchange costs little, but an unbounded number of them does not.
func bounded(most int, next http.Handler) http.Handler {
	slots := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			refuse(w, http.StatusServiceUnavailable, "OVERLOADED", "nothing was ordered; send the alert again later")
		}
	})
}

// refuse answers with a problem as RFC 9457 has it, in the form of the guard's own:
// callers decide by its code.
func refuse(w http.ResponseWriter, status int, code, detail string) {
	body, _ := json.Marshal(map[string]any{ // texts and a number: this cannot fail
		"title": http.StatusText(status), "status": status, "code": code, "detail": detail,
	})
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a caller that is gone hears nothing
}
