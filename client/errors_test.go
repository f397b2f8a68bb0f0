package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Every reason of the contract's table, as the nodes send it.
func TestReasons(t *testing.T) {
	type row struct {
		is        []error
		retriable bool
	}
	rows := map[reason.Reason]row{
		reason.InvalidArgument:     {[]error{ErrInvalidArgument}, false},
		reason.ResponseTooLarge:    {[]error{ErrResponseTooLarge}, false},
		reason.FingerprintMismatch: {[]error{ErrFingerprintMismatch}, false},
		reason.ReservationLost:     {[]error{ErrLost}, false},
		reason.ReservationLapsed:   {[]error{ErrLapsed}, false},
		reason.ReservationNotFound: {[]error{ErrNotFound, ErrLost}, false},
		reason.CommitConflict:      {[]error{ErrConflict}, false},
		reason.AlreadyCommitted:    {[]error{ErrAlreadyCommitted}, false},
		reason.AlreadyReleased:     {[]error{ErrAlreadyReleased}, false},
		reason.NotInDoubt:          {[]error{ErrNotInDoubt}, false},
		reason.NotPurgeable:        {nil, false}, // this client does not purge
		reason.RevisionMismatch:    {[]error{ErrRevisionMismatch}, false},
		reason.AttemptEnded:        {nil, false}, // Reserve goes on with another attempt
		reason.StorageFull:         {[]error{ErrStorageFull}, false},
		reason.QuotaExceeded:       {[]error{ErrQuotaExceeded}, false},
		reason.NoLeader:            {[]error{ErrUnavailable}, true},
		reason.ShuttingDown:        {[]error{ErrUnavailable}, true},
		reason.OutcomeUnknown:      {[]error{ErrUnknown, ErrUnavailable}, true},
		reason.Overloaded:          {[]error{ErrOverloaded}, true},
		reason.Unauthenticated:     {[]error{ErrUnauthenticated}, false},
		reason.PermissionDenied:    {[]error{ErrPermissionDenied}, false},
		reason.DeadlineExceeded:    {[]error{ErrUnknown, ErrUnavailable}, true},
		reason.Cancelled:           {[]error{ErrUnknown, ErrUnavailable}, true},
	}
	all := []error{
		ErrLost, ErrLapsed, ErrNotFound, ErrConflict, ErrAlreadyCommitted, ErrAlreadyReleased, ErrFingerprintMismatch,
		ErrNotInDoubt, ErrRevisionMismatch, ErrUnavailable, ErrUnknown, ErrOverloaded, ErrStorageFull, ErrQuotaExceeded,
		ErrInvalidArgument, ErrResponseTooLarge, ErrUnauthenticated, ErrPermissionDenied, ErrPending, ErrCommitted, ErrInDoubt,
	}
	for _, of := range reason.Table() {
		want, ok := rows[of.Reason]
		if !ok {
			t.Errorf("%s has no row here", of.Reason)
			continue
		}
		err := failure(callCommit, reason.Error(of.Reason, ""), true, false)
		if err.Reason != string(of.Reason) || err.Code != of.Code || err.RetryAfter != of.RetryAfter ||
			err.retriable != want.retriable || err.MaybeApplied != (of.Applied == reason.Maybe) {
			t.Errorf("%s: %+v", of.Reason, err)
		}
		if err.decided() != of.OfRecord {
			t.Errorf("%s: of its record: %v", of.Reason, !of.OfRecord)
		}
		for _, target := range all {
			if is := slices.Contains(want.is, target); errors.Is(fmt.Errorf("wrapped: %w", err), target) != is {
				t.Errorf("%s: is %q: %v", of.Reason, target, !is)
			}
		}
		if RetryAfter(fmt.Errorf("wrapped: %w", err)) != of.RetryAfter || Reason(err) != string(of.Reason) {
			t.Errorf("%s: %v, %q", of.Reason, RetryAfter(err), Reason(err))
		}
	}
}

// What has no reason of ours comes from gRPC or from something in between.
func TestBareStatuses(t *testing.T) {
	for _, row := range []struct {
		err                 error
		sent                bool
		retriable, mayApply bool
		is                  error
	}{
		{status.Error(codes.Unavailable, "x"), true, true, true, ErrUnknown},
		{status.Error(codes.Unavailable, "x"), false, true, false, ErrUnavailable},
		{status.Error(codes.Internal, "x"), true, true, true, ErrUnknown},
		{status.Error(codes.Unknown, "x"), true, false, true, ErrUnknown},
		{status.Error(codes.Unimplemented, "x"), true, false, false, nil},
		{status.Error(codes.InvalidArgument, "x"), true, false, false, ErrInvalidArgument},
		{status.Error(codes.Unauthenticated, "x"), true, false, false, ErrUnauthenticated},
		{status.Error(codes.PermissionDenied, "x"), true, false, false, ErrPermissionDenied},
		{status.Error(codes.ResourceExhausted, "x"), true, false, true, ErrUnknown},
		{context.DeadlineExceeded, true, true, true, ErrUnknown},
		{context.Canceled, true, true, true, ErrUnknown},
		{errors.New("x"), true, false, true, ErrUnknown},
	} {
		got := failure(callCommit, row.err, row.sent, false)
		if got.retriable != row.retriable || got.MaybeApplied != row.mayApply {
			t.Errorf("%v, sent %v: %+v", row.err, row.sent, got)
		}
		if row.is != nil && !errors.Is(got, row.is) {
			t.Errorf("%v is not %v", got, row.is)
		}
		if failure(callGet, row.err, row.sent, true).MaybeApplied {
			t.Errorf("%v: what only reads leaves no doubt", row.err)
		}
	}
}

// The reasons of a newer coordinator are judged by their code.
func TestReasonsOfANewerCoordinator(t *testing.T) {
	detailed := func(code codes.Code) error {
		s, err := status.New(code, "new").WithDetails(
			&errdetails.ErrorInfo{Reason: "SOMETHING_NEW", Domain: errorDomain},
			&errdetails.RetryInfo{RetryDelay: durationpb.New(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	if e := failure(callCommit, detailed(codes.Unavailable), true, false); !e.retriable || !e.MaybeApplied || e.RetryAfter != time.Second {
		t.Errorf("%+v", e)
	}
	for code, doubt := range map[codes.Code]bool{
		codes.FailedPrecondition: true, codes.Internal: true, codes.ResourceExhausted: true, codes.InvalidArgument: false, codes.PermissionDenied: false,
	} {
		e := failure(callCommit, detailed(code), true, false)
		if e.retriable || e.MaybeApplied != doubt || e.MaybeApplied != (reason.Of(detailed(code)).Applied == reason.Maybe) {
			t.Errorf("%+v", e)
		}
	}
	if err := refusal(&coordinatorv1.ReserveResponse{}); err == nil {
		t.Error("an outcome that is not known admits")
	}
}

func TestViolations(t *testing.T) {
	e := failure(callReserve, reason.Violation(reason.InvalidArgument, "identity.key", "must not be empty"), true, false)
	if len(e.Violations) != 1 || e.Violations[0] != (Violation{"identity.key", "must not be empty"}) {
		t.Errorf("%+v", e.Violations)
	}
}

func TestTextOfErrors(t *testing.T) {
	for want, err := range map[string]error{
		"coordinator: Commit: the shard has no leader that can be reached (NO_LEADER)": failure(callCommit, reason.Error(reason.NoLeader, ""), true, false),
		"coordinator: Reserve: no answer: context canceled; this client does not know whether the coordinator carried the Reserve out: " +
			"a grant is given back unused, so reserve again": &Error{Call: callReserve, Message: "no answer", ended: context.Canceled, MaybeApplied: true},
		"coordinator: Commit: no answer; this client does not know whether the coordinator carried the Commit out: " +
			"make the same call again, its answer then is the truth": &Error{Call: callCommit, Message: "no answer", MaybeApplied: true},
		"coordinator: Get: no answer": failure(callGet, status.Error(codes.Unavailable, "no answer"), true, true),
		`coordinator: another attempt holds the reservation (owner "me"), for 1.5s`:                &PendingError{Owner: "me", Age: 1500 * time.Millisecond},
		"coordinator: it was done before, for 1s":                                                  &CommittedError{Age: time.Second, Response: Response{Body: []byte("secret")}},
		"coordinator: an earlier attempt ended in silence and is not settled, for 0s":              &InDoubtError{},
		"coordinator: it was done, and that could not be recorded: another response was committed": &CommitError{Err: ErrConflict},
	} {
		if err.Error() != want {
			t.Errorf("%q, want %q", err.Error(), want)
		}
	}
}

func TestUncertain(t *testing.T) {
	plain := errors.New("x")
	cut := fmt.Errorf("x: %w", context.Canceled)
	for _, row := range []struct {
		err          error
		reopen, hold bool
	}{
		{nil, false, false},
		{plain, false, true},
		{cut, true, true},
		// What a call says that was cut off: gRPC's is none of context's errors.
		{status.FromContextError(context.DeadlineExceeded).Err(), true, true},
		{fmt.Errorf("x: %w", status.Error(codes.Canceled, "x")), true, true},
		{status.Error(codes.Unavailable, "x"), false, true},
		{NotApplied(status.Error(codes.Canceled, "x")), false, false},
		// It was done, by its own words.
		{fmt.Errorf("x: %w", &CommitError{Err: plain}), true, true},
		{Uncertain(plain), true, true},
		{NotApplied(plain), false, false},
		{NotApplied(cut), false, false},
		{fmt.Errorf("x: %w", Uncertain(NotApplied(plain))), true, true},
		{NotApplied(Uncertain(plain)), false, false},
	} {
		if IsUncertain(row.err, Reopen) != row.reopen || IsUncertain(row.err, Hold) != row.hold {
			t.Errorf("%v", row.err)
		}
	}
	if Uncertain(nil) != nil || NotApplied(nil) != nil || !errors.Is(Uncertain(plain), plain) || NotApplied(plain).Error() != "x" {
		t.Error("a mark changes what it marks")
	}
}

// A node may ask for a pause that is longer than what a duration holds, or forbid a retry by one:
// the call ends then, and does not begin again at once.
func TestThePauseThatIsAskedForHasNoEnd(t *testing.T) {
	told, err := status.New(codes.Unavailable, "not again").WithDetails(&errdetails.RetryInfo{
		RetryDelay: &durationpb.Duration{Seconds: 315_576_000_000}, // the longest that is valid
	})
	if err != nil {
		t.Fatal(err)
	}
	failed := failure(callReserve, told.Err(), true, false)
	var p pause
	if ctx, until := t.Context(), time.Now().Add(time.Hour); failed.RetryAfter <= 0 || p.restUntil(ctx, until, failed.RetryAfter) {
		t.Errorf("after %v it is tried again", failed.RetryAfter)
	}
}

// A mark changes nothing of the status that a gRPC server makes of an error.
func TestMarkedStatuses(t *testing.T) {
	detailed, err := status.New(codes.NotFound, "no such order").WithDetails(&errdetails.ErrorInfo{Reason: "GONE", Domain: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	plain := errors.New("x")
	for _, is := range []error{
		detailed.Err(), status.Error(codes.Unavailable, ""), fmt.Errorf("charging: %w", detailed.Err()), plain,
		fmt.Errorf("x: %w", context.DeadlineExceeded), errors.Join(plain, detailed.Err()),
	} {
		want, wantOK := status.FromError(is)
		for name, got := range map[string]error{
			"uncertain": Uncertain(is), "not applied": NotApplied(is), "twice": NotApplied(Uncertain(is)),
		} {
			told, ok := status.FromError(got)
			if ok != wantOK || !proto.Equal(told.Proto(), want.Proto()) || status.Code(got) != want.Code() {
				t.Errorf("%s: %v is %v, %v; want %v, %v", name, is, told, ok, want, wantOK)
			}
			if !errors.Is(got, is) || got.Error() != is.Error() {
				t.Errorf("%s: %v is not %v", name, got, is)
			}
			// Behind a mark that is no status another error's is found.
			if told, _ := status.FromError(errors.Join(got, detailed.Err())); told.Code() == codes.Unknown {
				t.Errorf("%s: %v hides the status behind it", name, is)
			}
		}
	}
}

// What the client refuses by itself has a code too.
func TestLocalErrorsHaveCodes(t *testing.T) {
	var failed *Error
	large := &coordinatorv1.CommitRequest{Response: Response{Body: make([]byte, messageBytesMax)}.wire()}
	if err := fits(callCommit, large); !errors.As(err, &failed) || failed.Code != codes.InvalidArgument || !errors.Is(err, ErrResponseTooLarge) {
		t.Errorf("%+v", failed)
	}
}

func TestReasonsOfReleasesFit(t *testing.T) {
	if got := text("a\xffb"); got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
	long := make([]rune, 2000)
	for i := range long {
		long[i] = '€'
	}
	if got := text(string(long)); len(got) > reasonMost || len(got) < reasonMost-3 {
		t.Errorf("%d bytes", len(got))
	}
}
