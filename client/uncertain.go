package client

import (
	"context"
	"errors"
)

// Uncertain marks the error of a function that may have acted: [Client.Do] does not
// release then. It says what the error says, and errors.Is and errors.As see through it.
// Of nil it is nil.
func Uncertain(err error) error {
	if err == nil {
		return nil
	}
	return &outcomeError{error: err, certain: false}
}

// NotApplied marks the error of a function that did not act and will not: [Client.Do]
// releases then, whatever the error is and under [Hold] too. Of nil it is nil.
func NotApplied(err error) error {
	if err == nil {
		return nil
	}
	return &outcomeError{error: err, certain: true}
}

// IsUncertain reports whether, after a function has failed with this error, it must be
// taken to have acted: the rule of [Client.Do], for whoever does without it.
//
//   - What is marked, by [Uncertain] or [NotApplied], is what it is marked as; of several
//     marks the outermost counts.
//   - Under [Hold] whatever is not marked is uncertain. Most errors of an order or a
//     payment are those of a connection, and Hold was chosen because twice is worse than
//     not at all.
//   - Under [Reopen] a context that has ended is uncertain: something was cut off. Every
//     other error is taken at its word, that nothing happened and nothing will.
func IsUncertain(err error, onLapse OnLapse) bool {
	var marked *outcomeError
	switch {
	case err == nil:
		return false
	case errors.As(err, &marked):
		return !marked.certain
	case onLapse != Reopen:
		return true
	}
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

type outcomeError struct {
	error
	certain bool
}

func (e *outcomeError) Unwrap() error { return e.error }
