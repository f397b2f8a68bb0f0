package grpcadmit

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
)

// handling is one admitted call in the hands of its handler: an [admit.Handler].
type handling struct {
	*guard
	attempt *admit.Attempt
	next    grpc.UnaryHandler
	request any
	message proto.Message // the request
	method  string

	returned atomic.Bool // the handler has

	// What the handler returned, and the status that gRPC makes of it.
	response any
	err      error
	told     *status.Status
}

// Handle implements admit.Handler.
func (h *handling) Handle(ctx context.Context) {
	response, err := h.next(context.WithValue(ctx, attemptKey{}, h.attempt), h.request)
	h.response, h.err, h.told = response, err, toldBy(err)
	h.returned.Store(true)
}

// toldBy returns the status that gRPC makes of what a handler returned.
func toldBy(err error) *status.Status {
	if err == nil {
		return status.New(codes.OK, "")
	}
	told, ok := status.FromError(err)
	if !ok {
		told = status.FromContextError(err)
	}
	return told
}

// Returned implements admit.Handler.
func (h *handling) Returned() bool { return true }

// Judge implements admit.Handler.
func (h *handling) Judge(ended bool) verdict.Verdict {
	if h.err != nil {
		switch {
		case !client.IsUncertain(h.err, client.Hold): // it is marked: else everything is, under Hold
			return verdict.Release
		case client.IsUncertain(h.err, client.Reopen): // it is marked, or a context has ended
			return verdict.Uncertain
		}
	}
	if h.classifier != nil {
		outcome := Outcome{Method: h.method, Request: h.message, Status: h.told, Err: h.err}
		if h.err == nil {
			outcome.Response, _ = messageOf(h.response)
		}
		if said := h.classifier(outcome); said != Default {
			return verdict.Verdict(said)
		}
	}
	if h.err != nil && h.told.Code() == codes.OK {
		return verdict.Uncertain // an error that says it is none
	}
	code := h.told.Code()
	if passedOn(h.told) {
		code = codes.Unavailable
	}
	return verdict.Verdict(rule(code, h.OnLapse, ended))
}

// Status implements admit.Handler.
func (h *handling) Status() string { return h.told.Code().String() }

// Response implements admit.Handler.
func (h *handling) Response() (client.Response, error) { return h.storable(h.response, h.told) }

// Abandon implements admit.Handler: nothing of an answer goes out before it is whole. A handler
// that has returned does not go on, and what came of it is about to be known.
func (h *handling) Abandon() bool { return !h.returned.Load() }
