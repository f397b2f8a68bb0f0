package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Bounds. What is over one is rejected.
const (
	fillsMost  = 100_000
	faultsMost = 10_000 // symbols, and faults of one
	bodyMost   = 16 << 10
	delayMost  = time.Minute // of each delay of a fault
)

// order is what is submitted.
type order struct {
	ClientOrderID string `json:"client_order_id"`
	Symbol        string `json:"symbol"`
	Side          string `json:"side"` // "buy" or "sell"
	Quantity      string `json:"quantity"`
	// ValidUntilMS is the moment, on the exchange's clock, in milliseconds since 1970,
	// from which the order is not accepted any more.
	ValidUntilMS int64 `json:"valid_until_ms"`
}

func (o order) check() error {
	for name, value := range map[string]string{"client_order_id": o.ClientOrderID, "symbol": o.Symbol, "quantity": o.Quantity} {
		if value == "" || len(value) > 64 {
			return fmt.Errorf("%s has %d bytes, it must have 1 to 64", name, len(value))
		}
	}
	if o.Side != "buy" && o.Side != "sell" {
		return errors.New("side must be buy or sell")
	}
	return nil
}

// fill is an order that was accepted.
type fill struct {
	OrderID       int    `json:"order_id"` // from 1
	ClientOrderID string `json:"client_order_id"`
	Symbol        string `json:"symbol"`
	Side          string `json:"side"`
	Quantity      string `json:"quantity"`
	FilledAtMS    int64  `json:"filled_at_ms"`
}

// fault is how one submission goes wrong. The zero value is one that does not.
type fault struct {
	// Reject answers {"success": false} with this reason; the order is not accepted.
	Reject string `json:"reject"`
	// AcceptAfterMS leaves the order in a queue for so long. It is accepted then if it is
	// still valid, whatever became of who sent it.
	AcceptAfterMS int `json:"accept_after_ms"`
	// ReplyAfterMS keeps the reply back for so long.
	ReplyAfterMS int `json:"reply_after_ms"`
	// Lose cuts the connection: "request" before anything is done, "reply" in place of the
	// reply.
	Lose string `json:"lose"`
	// Status answers with this status, in place of the reply.
	Status int `json:"status"`
	// Hide makes lookups of the order fail.
	Hide bool `json:"hide"`
}

func (f fault) check() error {
	for _, ms := range []int{f.AcceptAfterMS, f.ReplyAfterMS} {
		if ms < 0 || ms > int(delayMost/time.Millisecond) {
			return fmt.Errorf("a delay is %d ms, it must be 0 to %d", ms, delayMost/time.Millisecond)
		}
	}
	if f.Lose != "" && f.Lose != "request" && f.Lose != "reply" {
		return errors.New(`lose must be "request" or "reply"`)
	}
	if f.Status != 0 && (f.Status < 400 || f.Status > 599) {
		return fmt.Errorf("the status is %d, it must be 400 to 599", f.Status)
	}
	return nil
}

// reply is the answer to a submission.
type reply struct {
	Success bool   `json:"success"`
	Error   string `json:"error,omitempty"`
	Order   *fill  `json:"order,omitempty"`
}

// exchange is the book. Its mutex makes an acceptance and a lookup one step each: a
// lookup that says what the clock was has seen everything that was accepted before.
type exchange struct {
	log *slog.Logger

	mu     sync.Mutex
	fills  []fill
	faults map[string][]fault // of a symbol, the next first
	hidden map[string]bool    // client order ids
}

func newExchange(log *slog.Logger) *exchange {
	return &exchange{log: log, faults: map[string][]fault{}, hidden: map[string]bool{}}
}

func (e *exchange) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /time", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]int64{"now_ms": time.Now().UnixMilli()})
	})
	mux.HandleFunc("POST /orders", e.submit)
	mux.HandleFunc("GET /orders", e.find)
	mux.HandleFunc("GET /fills", func(w http.ResponseWriter, _ *http.Request) {
		e.mu.Lock()
		fills := append([]fill{}, e.fills...)
		e.mu.Unlock()
		answer(w, fills)
	})
	mux.HandleFunc("PUT /faults/{symbol}", e.arrange)
	return mux
}

// submit takes an order. The handler goes on when its caller hangs up, as an exchange
// does.
func (e *exchange) submit(w http.ResponseWriter, r *http.Request) {
	var o order
	if err := decode(w, r, &o); err != nil {
		answer(w, reply{Error: err.Error()})
		return
	}
	if err := o.check(); err != nil {
		answer(w, reply{Error: err.Error()})
		return
	}
	e.log.Info("received", "symbol", o.Symbol, "client_order_id", o.ClientOrderID)
	f := e.next(o)
	switch {
	case f.Lose == "request":
		panic(http.ErrAbortHandler)
	case f.Reject != "":
		answer(w, reply{Error: f.Reject})
		return
	}
	pass(f.AcceptAfterMS)
	said := e.accept(o)
	pass(f.ReplyAfterMS)
	switch {
	case f.Lose == "reply":
		panic(http.ErrAbortHandler)
	case f.Status != 0:
		http.Error(w, "something went wrong", f.Status)
	default:
		answer(w, said)
	}
}

// next returns what is to go wrong with this submission.
func (e *exchange) next(o order) fault {
	e.mu.Lock()
	defer e.mu.Unlock()
	faults := e.faults[o.Symbol]
	if len(faults) == 0 {
		return fault{}
	}
	e.faults[o.Symbol] = faults[1:]
	if faults[0].Hide && len(e.hidden) < fillsMost {
		e.hidden[o.ClientOrderID] = true
	}
	return faults[0]
}

// accept fills the order, if it is still valid. It does not look for another one with
// the same client order id.
func (e *exchange) accept(o order) reply {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now().UnixMilli()
	switch {
	case now >= o.ValidUntilMS:
		e.log.Info("refused: too late", "symbol", o.Symbol, "client_order_id", o.ClientOrderID)
		return reply{Error: "the order came too late to be accepted"}
	case len(e.fills) >= fillsMost:
		return reply{Error: "the book is full"}
	}
	filled := fill{
		OrderID: len(e.fills) + 1, ClientOrderID: o.ClientOrderID, Symbol: o.Symbol,
		Side: o.Side, Quantity: o.Quantity, FilledAtMS: now,
	}
	e.fills = append(e.fills, filled)
	e.log.Info("filled", "symbol", o.Symbol, "client_order_id", o.ClientOrderID, "order", filled.OrderID)
	return reply{Success: true, Order: &filled}
}

// lookup is the answer to what became of a client order id.
type lookup struct {
	// NowMS is the exchange's clock: everything that was accepted before is in sight.
	NowMS int64 `json:"now_ms"`
	// Order is the first one with this id; null: there is none.
	Order *fill `json:"order"`
}

func (e *exchange) find(w http.ResponseWriter, r *http.Request) {
	found, ok := e.look(r.URL.Query().Get("client_order_id"))
	if !ok {
		http.Error(w, "lookups are away", http.StatusServiceUnavailable)
		return
	}
	answer(w, found)
}

func (e *exchange) look(id string) (found lookup, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	found.NowMS = time.Now().UnixMilli()
	for _, filled := range e.fills {
		if filled.ClientOrderID == id {
			found.Order = &filled
			break
		}
	}
	return found, !e.hidden[id]
}

// arrange takes the faults of a symbol, in place of those that it had.
func (e *exchange) arrange(w http.ResponseWriter, r *http.Request) {
	var faults []fault
	err := decode(w, r, &faults)
	for _, f := range faults {
		err = errors.Join(err, f.check())
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.faults) >= faultsMost || len(faults) > faultsMost {
		http.Error(w, "there are too many faults", http.StatusInsufficientStorage)
		return
	}
	e.faults[strings.ToUpper(r.PathValue("symbol"))] = faults
	w.WriteHeader(http.StatusNoContent)
}

// pass lets some time go by, whatever the caller does.
func pass(ms int) {
	if ms > 0 {
		<-time.After(time.Duration(ms) * time.Millisecond)
	}
}

func decode(w http.ResponseWriter, r *http.Request, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyMost))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}

func answer(w http.ResponseWriter, with any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(with) // a caller that is gone hears nothing
}
