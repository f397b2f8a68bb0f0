package disk

import (
	"errors"
	"strings"
)

// Unreadable is an error of a file that is read where it is mapped, or by what trusts it: reading
// it was a fault, or made no sense. What Go calls that is its cause, and no word of it is for people.
type Unreadable struct{ Cause error }

func (Unreadable) Error() string {
	return "a part of it cannot be read: the disk fails, or it was cut or overwritten while this process had it open"
}

// Unwrap returns the cause.
func (u Unreadable) Unwrap() error { return u.Cause }

// Advice is what is to be done where a data directory has lost something, or something in it is
// damaged: nothing in it can be trusted then to be what the node has promised. It is said behind
// what was found.
const Advice = "replace the node (an empty directory, and `coordctl members replace`), or put back a copy of the whole directory " +
	"if it is a cluster by itself; docs/cluster.md says what that gives up"

// Advise returns the error with [Advice] behind it, once. Of errors that are joined each has its own;
// see [Once].
func Advise(err error) error {
	if before := (advised{}); err == nil || errors.As(err, &before) {
		return err
	}
	return advised{err}
}

type advised struct{ error }

func (a advised) Error() string { return a.error.Error() + ": " + Advice }
func (a advised) Unwrap() error { return a.error }

// Once returns an error of several places, as the shards of a node are, with [Advice] behind all that
// was found, and not behind each of it.
func Once(err error) error {
	if err == nil || strings.Count(err.Error(), Advice) < 2 {
		return err
	}
	return once{err}
}

type once struct{ error }

func (o once) Error() string {
	return strings.ReplaceAll(o.error.Error(), ": "+Advice, "") + ": " + Advice
}

func (o once) Unwrap() error { return o.error }
