package main

import (
	"crypto/sha256"
	"encoding/json"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

const (
	reserveTimeout = 3 * time.Second  // an alert waits so long for a coordinator that is away, and is refused
	duplicateWait  = 2 * time.Second  // a duplicate waits so long for the first one's answer
	settleTimeout  = 15 * time.Second // the coordinator is told what came of an order for so long
	requestsMost   = 512              // at a time
)

// operationPrefix and a venue's name are the operation of an order at the coordinator:
// live and test are two operations, so whatever key a sender chooses, they never meet.
const operationPrefix = "trade:"

// clientOrderID is how one submission is called at its exchange. Whoever looks for it later
// comes to the same id: the coordinator shows the identity and the fence of what is in
// doubt, and nothing else is needed.
//
// The fence makes it another one for every attempt. The identity alone would not do: the
// same alert comes again after its window, with the same key, and whoever looked for its
// order would find the earlier one, and call that filled.
//
// A UUID has 36 characters, which is what many exchanges take at most.
func clientOrderID(id client.Identity, fence uint64) string {
	return id.DeriveUUID("order " + strconv.FormatUint(fence, 10))
}

// gateway turns alerts into orders.
type gateway struct {
	coordinator *client.Client
	namespace   string
	accounts    map[[sha256.Size]byte]string // hash of a token → who has it
	venues      map[string]*venue            // by their names, such as "sim:live"
	window      time.Duration                // of alerts without a key
	pendingTTL  time.Duration                // of an order's reservation
	log         *slog.Logger
}

// handler is the whole service.
func (g *gateway) handler() http.Handler {
	// What makes one order another one. The same key with other values of these is a
	// mistake of its sender (422), and an alert without a key has one made of them.
	fields := []httpadmit.Field{
		httpadmit.JSONField("exchange"), httpadmit.JSONField("symbol"), httpadmit.JSONField("action"),
		httpadmit.JSONField("quantity"), httpadmit.JSONField("mode"),
	}
	guard := httpadmit.New(g.coordinator,
		httpadmit.WithNamespace(g.namespace),
		httpadmit.WithPrincipal(func(r *http.Request) string { return incomingOf(r.Context()).account }),
		httpadmit.WithOperation(func(r *http.Request) string { return operationPrefix + incomingOf(r.Context()).alert.venue() }),
		httpadmit.WithKeys(
			httpadmit.IdempotencyKey(),
			httpadmit.KeyFromJSON("id"),
			httpadmit.AutomaticKey(g.window, fields...),
		),
		httpadmit.WithKeyRequired(),
		httpadmit.WithFingerprint(httpadmit.ChosenFields(fields...)),
		httpadmit.WithBodyLimit(bodyBytesMost),
		// An order whose outcome nobody knows is not ordered again.
		httpadmit.WithOnLapse(client.Hold),
		httpadmit.WithPendingTTL(g.pendingTTL),
		// {"success": false} with a 200 is what chart services understand. It is no success.
		httpadmit.WithClassifier(httpadmit.SoftFailure("success")),
		httpadmit.WithReserveTimeout(reserveTimeout),
		httpadmit.WithWait(duplicateWait),
		// As long as the client tries: nothing goes on when a handler has returned, so
		// that a server that has shut down has recorded everything.
		httpadmit.WithSettleWait(settleTimeout+time.Second),
		httpadmit.WithLogger(g.log),
	)
	mux := http.NewServeMux()
	mux.Handle("POST /v1/alerts", bounded(requestsMost, g.identified(guard(http.HandlerFunc(g.placeOrder)))))
	return mux
}

// placeOrder runs only if its request was admitted, and says what came of it.
func (g *gateway) placeOrder(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	in, reservation := incomingOf(r.Context()), httpadmit.Reservation(r.Context())
	id := clientOrderID(reservation.Identity(), reservation.Fence())
	log := g.log.With("key", reservation.Identity().Key, "fence", reservation.Fence(), "attempt", reservation.Attempt(),
		"account", in.account, "venue", in.alert.venue(), "client_order_id", id)
	log.Info("an order is submitted", "symbol", in.alert.Symbol, "side", in.alert.Action, "quantity", in.alert.Quantity)

	// The context ends with the reservation, and not with the caller: chart services hang
	// up after a few seconds, and the order is on its way all the same.
	result := g.venues[in.alert.venue()].place(r.Context(), order{
		ClientOrderID: id, Symbol: in.alert.Symbol, Side: in.alert.Action, Quantity: in.alert.Quantity,
	}, reservation.Remaining)

	log = log.With("outcome", result.outcome.String(), "took", time.Since(began).String())
	switch result.outcome {
	case filled:
		log.Info("an order has ended", "order_id", result.fill.OrderID)
		write(w, filledResponse(result.fill))
	case rejected:
		log.Info("an order has ended", "reason", result.err)
		write(w, response(answered{Error: result.err.Error()}))
	case notPlaced:
		log.Warn("an order has ended", "reason", result.err)
		httpadmit.MarkNotApplied(r.Context()) // the key is free: a retry orders
		w.Header().Set("Retry-After", "1")
		refuse(w, http.StatusServiceUnavailable, "ORDER_NOT_PLACED", "nothing was ordered, and nothing will be; send the alert again")
	default:
		log.Error("what came of an order is unknown", "reason", result.err)
		httpadmit.MarkUncertain(r.Context()) // the key stays taken, and is in doubt soon
		w.Header().Set("Retry-After", "10")
		refuse(w, http.StatusGatewayTimeout, "ORDER_OUTCOME_UNKNOWN", "the order "+id+
			" may be filled, now or later; the same alert again gets the answer once it is known, and orders nothing until then")
	}
}

// filledResponse is what a filled order is answered with, whoever finds out that it is.
func filledResponse(f fill) client.Response {
	return response(answered{Success: true, Order: &f})
}

// answered is what an alert is answered with once its order has ended.
type answered struct {
	Success bool   `json:"success"`
	Error   string `json:"error,omitempty"`
	Order   *fill  `json:"order,omitempty"`
}

func response(a answered) client.Response {
	text, _ := json.Marshal(a) // texts and numbers: this cannot fail
	return client.Response{Code: http.StatusOK, ContentType: "application/json", Body: text}
}

func write(w http.ResponseWriter, response client.Response) {
	w.Header().Set("Content-Type", response.ContentType)
	w.WriteHeader(response.Code)
	_, _ = w.Write(response.Body) // a caller that is gone hears nothing
}

// venueOf is the venue of an operation, nil where it is none of this gateway's.
func (g *gateway) venueOf(operation string) *venue {
	name, _ := strings.CutPrefix(operation, operationPrefix)
	return g.venues[name]
}
