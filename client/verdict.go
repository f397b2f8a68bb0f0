package client

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
)

// verdict is what a call comes to while no try of it was answered.
//
// A doubt stays: once a try may have been carried out, only an answer and a refusal for what the
// record is take it back, which hold for every earlier try too. Whatever else ends the call is told
// with it.
type verdict struct {
	call  string
	doubt bool   // a try may have been carried out
	last  *Error // of those that are worth another try, the one that tells most; nil: none was made
}

// note takes in a try that failed, and returns the error where the call ends with it: nil means
// that another try is worth it.
func (v *verdict) note(failed *Error) *Error {
	if failed.decided() {
		return failed
	}
	v.doubt = v.doubt || failed.MaybeApplied
	if !failed.retriable {
		failed.MaybeApplied = v.doubt
		return failed
	}
	// What only says that time was over tells less than what came before it.
	if v.last == nil || failed.Code == codes.Unavailable || v.last.Code != codes.Unavailable {
		v.last = failed
	}
	return nil
}

// end is the error where there is no further try, and why there is none: ErrClosed, the error of the
// caller's context, or nil where the call's own time is over.
func (v *verdict) end(why error) *Error {
	e := v.last
	switch {
	case errors.Is(why, ErrClosed):
		e = &Error{Call: v.call, Code: codes.Canceled, Message: "there is no answer"}
	case e != nil:
	case errors.Is(why, context.Canceled):
		e = &Error{Call: v.call, Code: codes.Canceled, Message: "the call was cancelled before a node was asked"}
	default:
		e = &Error{Call: v.call, Code: codes.DeadlineExceeded, Message: "the time for the call was over before a node was asked"}
	}
	e.MaybeApplied, e.ended = v.doubt, why
	return e
}
