package client

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Uncertain marks the error of a function that may have acted: [Client.Do] does not
// release then. It says what the error says, errors.Is and errors.As see through it, and
// so does package status: code, message and details are those of the error. Of nil it is
// nil.
func Uncertain(err error) error {
	if err == nil {
		return nil
	}
	return marked(err, false)
}

// NotApplied marks the error of a function that did not act and will not: [Client.Do]
// releases then, whatever the error is and under [Hold] too. Otherwise it is as
// [Uncertain]. Of nil it is nil.
func NotApplied(err error) error {
	if err == nil {
		return nil
	}
	return marked(err, true)
}

// IsUncertain reports whether, after a function has failed with this error, it must be
// taken to have acted: the rule of [Client.Do], for whoever does without it.
//
//   - What is marked, by [Uncertain] or [NotApplied], is what it is marked as; of several
//     marks the outermost counts.
//   - Under [Hold] whatever is not marked is uncertain. Most errors of an order or a
//     payment are those of a connection, and Hold was chosen because twice is worse than
//     not at all.
//   - Under [Reopen] a context that has ended is uncertain, since something was cut off,
//     whether it is told by an error of package context or by a gRPC status, CANCELLED or
//     DEADLINE_EXCEEDED. So is a [*CommitError], which says that something was done. Every
//     other error is taken at its word, that nothing happened and nothing will.
//
// [Client.Do] knows more, and takes every error that is not marked for uncertain once the
// function's context has ended.
func IsUncertain(err error, onLapse OnLapse) bool {
	var (
		mark *outcomeError
		done *CommitError
	)
	switch {
	case err == nil:
		return false
	case errors.As(err, &mark):
		return !mark.certain
	case onLapse != Reopen, errors.As(err, &done), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return true
	}
	// The status that gRPC makes of a context that has ended is none of context's errors.
	code := status.Code(err)
	return code == codes.Canceled || code == codes.DeadlineExceeded
}

// outcomeError is a marked error.
type outcomeError struct {
	error
	certain bool
}

func (e *outcomeError) Unwrap() error { return e.error }

// marked marks an error.
func marked(err error, certain bool) error {
	mark := &outcomeError{error: err, certain: certain}
	if _, is := status.FromError(err); is {
		return &statusError{mark}
	}
	return mark
}

// statusError is a marked error that is a status. Without it package status would find the
// status by unwrapping, and replace its message by the text of all errors around it.
type statusError struct{ *outcomeError }

func (e *statusError) Unwrap() error { return e.outcomeError }

// GRPCStatus is what package status looks for.
func (e *statusError) GRPCStatus() *status.Status {
	return status.Convert(e.error)
}
