package refusal

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/client"
)

// Whatever Reserve fails with is an answer that refuses; what is not known is "unavailable".
func TestOfReserve(t *testing.T) {
	const told = 7 * time.Second
	failed := func(reason string, after time.Duration) error {
		return &client.Error{Call: "Reserve", Code: codes.Unavailable, Reason: reason, RetryAfter: after}
	}
	for _, row := range []struct {
		err   error
		code  Code
		after time.Duration
	}{
		{&client.PendingError{RetryAfter: time.Second}, InFlight, time.Second},
		{&client.PendingError{}, InFlight, time.Millisecond},
		{&client.InDoubtError{}, InDoubt, 0},
		{failed("FINGERPRINT_MISMATCH", 0), Mismatch, 0},
		{failed("INVALID_ARGUMENT", 0), Misconfigured, 0},
		{failed("NO_LEADER", time.Second), Unavailable, told},
		{failed("OVERLOADED", time.Minute), Unavailable, time.Minute},
		{failed("STORAGE_FULL", 0), Unavailable, told},
		{failed("QUOTA_EXCEEDED", 0), Unavailable, told},
		{failed("PERMISSION_DENIED", 0), Unavailable, told},
		{failed("SOMETHING_NEW", 0), Unavailable, told},
		{client.ErrClosed, Unavailable, told},
		{errors.New("no error of the client"), Unavailable, told},
	} {
		for _, err := range []error{row.err, fmt.Errorf("wrapped: %w", row.err)} {
			got := OfReserve(err, told)
			if got.Code != row.code || got.RetryAfter != row.after || got.Executed || got.Status != 0 {
				t.Errorf("%v: %+v, want %s after %v", err, got, row.code, row.after)
			}
		}
	}
}

// What the middleware is set up wrongly to ask for is named, and never shown.
func TestMisconfiguredNamesTheFields(t *testing.T) {
	got := OfReserve(&client.Error{Reason: "INVALID_ARGUMENT", Message: "an argument is not valid", Violations: []client.Violation{
		{Field: "owner", Detail: "is 200 bytes long, the limit is 128"}, {Field: "retention", Detail: "must be at least 1s"},
	}}, time.Second)
	const want = "owner is 200 bytes long, the limit is 128; retention must be at least 1s"
	if got.Code != Misconfigured || got.Detail != want {
		t.Errorf("%+v, want %q", got, want)
	}
	if got := OfReserve(&client.Error{Reason: "INVALID_ARGUMENT", Message: "an argument is not valid"}, 0); got.Detail != "" {
		t.Errorf("%+v", got)
	}
}

// What ran, and was not recorded, is never said not to have run.
func TestUnrecorded(t *testing.T) {
	for _, row := range []struct {
		err  error
		code Code
	}{
		{nil, Unavailable}, // it goes on behind the scenes
		{&client.Error{Code: codes.Unavailable, MaybeApplied: true}, Unavailable},
		{client.ErrClosed, Unavailable},
		{&client.Error{Reason: "RESERVATION_LOST"}, Lost},
		{&client.Error{Reason: "RESERVATION_NOT_FOUND", Call: "Commit"}, Lost},
		{&client.Error{Reason: "RESERVATION_LAPSED"}, Lost},
		{&client.Error{Reason: "COMMIT_CONFLICT"}, Lost},
		{&client.Error{Reason: "ALREADY_RELEASED"}, Lost},
	} {
		if got := Unrecorded(row.err, time.Second); got.Code != row.code || !got.Executed || got.RetryAfter != time.Second {
			t.Errorf("%v: %+v, want %s", row.err, got, row.code)
		}
	}
	if got := Omitted(201); got.Code != ResponseNotStored || !got.Executed || got.Status != 201 || got.RetryAfter != 0 {
		t.Errorf("%+v", got)
	}
	if got := Late(time.Second); got.Code != HandlerTimeout || got.Executed || got.RetryAfter != time.Second {
		t.Errorf("%+v: a handler that goes on has not run", got)
	}
	if got := Invalid("why").Error(); got != "IDEMPOTENCY_KEY_INVALID: why" {
		t.Errorf("%q", got)
	}
}
