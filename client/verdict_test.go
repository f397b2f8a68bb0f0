package client

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/internal/reason"
)

// What is said of a call whose tries failed, in order: of doubts, of what the last try found out,
// and of why there is no further one.
func TestVerdicts(t *testing.T) {
	refused := func(of reason.Reason) func() *Error {
		return func() *Error { return failure(callCommit, reason.Error(of, ""), true, false) }
	}
	bare := func(code codes.Code, reached bool) func() *Error {
		return func() *Error { return failure(callCommit, status.Error(code, "bare"), reached, false) }
	}
	var (
		unsent    = bare(codes.Unavailable, false)
		lost      = bare(codes.Unavailable, true)
		late      = bare(codes.DeadlineExceeded, true)
		cancelled = bare(codes.Canceled, true)
		unknown   = refused(reason.OutcomeUnknown)
		noLeader  = refused(reason.NoLeader)
		full      = refused(reason.Overloaded)
		conflict  = refused(reason.CommitConflict)
		tooLarge  = refused(reason.ResponseTooLarge)
		quota     = refused(reason.QuotaExceeded)
	)
	type tries []func() *Error
	for _, row := range []struct {
		name   string
		tries  tries
		final  bool  // the last of them ends the call
		why    error // otherwise: why there is no further one
		code   codes.Code
		reason reason.Reason
		doubt  bool
	}{
		{"refusal of the record", tries{conflict}, true, nil, codes.FailedPrecondition, reason.CommitConflict, false},
		{"other refusal", tries{tooLarge}, true, nil, codes.InvalidArgument, reason.ResponseTooLarge, false},
		{"no doubt, then other refusal", tries{unsent, noLeader, full, quota}, true, nil, codes.ResourceExhausted, reason.QuotaExceeded, false},
		{"doubt, then refusal of the record", tries{lost, conflict}, true, nil, codes.FailedPrecondition, reason.CommitConflict, false},
		{"doubt, then other refusal", tries{lost, tooLarge}, true, nil, codes.InvalidArgument, reason.ResponseTooLarge, true},
		{"doubt, then what is worth another try, then other refusal", tries{unknown, noLeader, unsent, tooLarge}, true, nil, codes.InvalidArgument, reason.ResponseTooLarge, true},
		{"what nobody has named leaves a doubt by itself", tries{bare(codes.Unknown, true)}, true, nil, codes.Unknown, "", true},

		{"cancelled before a send", nil, false, context.Canceled, codes.Canceled, "", false},
		{"cancelled before a send, while a node could not be reached", tries{unsent}, false, context.Canceled, codes.Unavailable, "", false},
		{"cancelled after a send", tries{cancelled}, false, context.Canceled, codes.Canceled, "", true},
		{"caller's time over before a send", nil, false, context.DeadlineExceeded, codes.DeadlineExceeded, "", false},
		{"caller's time over after a send", tries{late}, false, context.DeadlineExceeded, codes.DeadlineExceeded, "", true},
		{"the call's own time over before a send", nil, false, nil, codes.DeadlineExceeded, "", false},
		{"the call's own time over after a send", tries{late}, false, nil, codes.DeadlineExceeded, "", true},
		{"closed before a send", nil, false, ErrClosed, codes.Canceled, "", false},
		{"closed before a send, while there was no leader", tries{noLeader}, false, ErrClosed, codes.Canceled, "", false},
		{"closed after a send", tries{lost}, false, ErrClosed, codes.Canceled, "", true},

		{"doubt, then none", tries{lost, noLeader}, false, nil, codes.Unavailable, reason.NoLeader, true},
		{"the latest that could not answer", tries{noLeader, lost}, false, nil, codes.Unavailable, "", true},
		{"time that was over tells less", tries{noLeader, late}, false, nil, codes.Unavailable, reason.NoLeader, true},
		{"overload tells less", tries{noLeader, full}, false, nil, codes.Unavailable, reason.NoLeader, false},
		{"of those that tell little, the latest", tries{late, full}, false, nil, codes.ResourceExhausted, reason.Overloaded, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			v := verdict{call: callCommit}
			var got *Error
			for i, failed := range row.tries {
				got = v.note(failed())
				if last := i == len(row.tries)-1; (got != nil) != (last && row.final) {
					t.Fatalf("after try %d: %v", i+1, got)
				}
			}
			if !row.final {
				got = v.end(row.why)
			}
			if got.Call != callCommit || got.Code != row.code || got.Reason != string(row.reason) || got.MaybeApplied != row.doubt || got.Message == "" {
				t.Errorf("%+v", got)
			}
			if !errors.Is(errors.Unwrap(got), row.why) {
				t.Errorf("ended by %v", errors.Unwrap(got))
			}
		})
	}
}
