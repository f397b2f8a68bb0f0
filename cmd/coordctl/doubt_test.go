package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Commit and Get of the stub leave a doubt, unless it is told otherwise.
func (s *stub) Commit(context.Context, *coordinatorv1.CommitRequest) (*coordinatorv1.CommitResponse, error) {
	takes(s.pace)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.commit != nil {
		return &coordinatorv1.CommitResponse{}, s.commit()
	}
	return nil, reason.Error(reason.DeadlineExceeded, "")
}

func (s *stub) Get(ctx context.Context, _ *coordinatorv1.GetRequest) (*coordinatorv1.GetResponse, error) {
	if s.get != nil {
		return nil, s.get(ctx)
	}
	return nil, reason.Error(reason.DeadlineExceeded, "")
}

// A failure in doubt says who does not know what, and what to do.
func TestADoubtSaysWhatToDo(t *testing.T) {
	virtually(t, func(t *testing.T) {
		address := serve(t, &stub{reserve: failed(reason.Error(reason.DeadlineExceeded, ""))})
		unknown := serve(t, &stub{reserve: failed(reason.Error(reason.OutcomeUnknown, ""))})
		id := strings.Repeat("a1", 16)
		for _, test := range []struct {
			endpoint  string
			arguments string
			text      string
			applied   string
		}{
			{
				address, "reserve k --attempt-id " + id,
				"DEADLINE_EXCEEDED: the call's deadline passed; coordctl does not know whether the coordinator carried the call out" +
					"; to ask again as the same attempt: --attempt-id " + id, "maybe",
			},
			{
				unknown, "reserve k --attempt-id " + id,
				"OUTCOME_UNKNOWN: it is not known whether the call was carried out; to ask again as the same attempt: --attempt-id " + id, "maybe",
			},
			{
				address, "commit k --token T",
				"DEADLINE_EXCEEDED: the call's deadline passed; coordctl does not know whether the coordinator carried the call out" +
					": the same command again is safe, and is answered with the truth", "maybe",
			},
			// What only looks leaves nothing behind.
			{address, "get k", "DEADLINE_EXCEEDED: the call's deadline passed", "no"},
		} {
			arguments := append([]string{"--endpoints", test.endpoint, "--timeout", "1s"}, strings.Fields(test.arguments)...)
			if code, _, stderr := command(t, arguments...); code != reason.ExitUnavailable || stderr != "coordctl: "+test.text+"\n" {
				t.Errorf("%s: exit code %d, stderr %q, want %q", test.arguments, code, stderr, test.text)
			}
			_, _, stderr := command(t, append(arguments, "-o", "json")...)
			var shown map[string]errorJSON
			if err := json.Unmarshal([]byte(stderr), &shown); err != nil || shown["error"].Applied != test.applied {
				t.Errorf("%s: %q (%v), want applied %q", test.arguments, stderr, err, test.applied)
			}
		}
	})
}

// Who does not know whether a call that changes something was carried out says so in the exit code too,
// whatever was answered. A look ends as it did.
func TestADoubtHasOneExitCode(t *testing.T) {
	leakless(t)
	for _, answer := range []error{
		status.Error(codes.Internal, "boom"), status.Error(codes.DataLoss, "boom"), status.Error(codes.Unknown, "boom"),
		status.Error(codes.ResourceExhausted, "boom"), status.Error(codes.FailedPrecondition, "boom"),
		named(codes.FailedPrecondition, "OF_A_NEWER_COORDINATOR"), named(codes.Internal, "OF_A_NEWER_COORDINATOR"),
	} {
		s := &stub{reserve: failed(answer), commit: func() error { return answer }, get: func(context.Context) error { return answer }}
		address := serve(t, s)
		for line, want := range map[string]int{
			"reserve k": reason.ExitUnavailable, "commit k --token T": reason.ExitUnavailable, "get k": reason.Of(answer).ExitCode,
		} {
			code, _, stderr := command(t, append(strings.Fields(line), "--endpoints", address)...)
			if doubts := strings.Contains(stderr, "coordctl does not know"); code != want || doubts != !strings.HasPrefix(line, "get") {
				t.Errorf("%s, %v: exit code %d, %q", line, answer, code, stderr)
			}
		}
		if status.Code(answer) == codes.Internal {
			continue // the Go client makes the same call again, for as long as it has
		}
		r, reservation, said := reserved(t, s, time.Minute)
		code := r.report(r.settle(reservation, ending{status: 3}, newCapture()))
		if code != exitNotRecorded || !strings.Contains(said.String(), "it is not known whether the outcome was recorded: ") {
			t.Errorf("run, %v: exit code %d, %q", answer, code, said)
		}
	}
	// An answer that this program's own gRPC does not take is none either.
	large := &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Committed{Committed: &coordinatorv1.Committed{
		Response: &coordinatorv1.Response{Body: make([]byte, 5<<20)},
	}}}
	s := &stub{reserve: func(int) (*coordinatorv1.ReserveResponse, error) { return large, nil }}
	if code, _, stderr := command(t, "reserve", "k", "--endpoints", serve(t, s)); code != reason.ExitUnavailable || !strings.Contains(stderr, "RESOURCE_EXHAUSTED: ") {
		t.Errorf("a large answer: exit code %d, %q", code, stderr)
	}
}

// A run says what it was answered, where that was without a reason.
func TestRunSaysWhatItWasAnswered(t *testing.T) {
	virtually(t, func(t *testing.T) {
		for _, answer := range []error{status.Error(codes.Internal, "boom"), status.Error(codes.Unavailable, "no healthy upstream"), status.Error(codes.DataLoss, "")} {
			address := serve(t, &stub{reserve: failed(answer)})
			code, _, stderr := command(t, "run", "--endpoints", address, "--timeout", "1s", "--key", "k", "--", "true")
			want := ": " + answerInWords(address, reason.Of(answer)) + "; the command was not started; "
			if code != exitOfRun+reason.ExitUnavailable || !strings.Contains(stderr, want) {
				t.Errorf("exit code %d, %q, want %q", code, stderr, want)
			}
		}
	})
}

// A run whose key is another's says whose it may be where it cannot look.
func TestAMismatchThatCannotBeLookedAt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		address := serve(t, &stub{reserve: failed(reason.Error(reason.FingerprintMismatch, ""))})
		const want = "coordctl: FINGERPRINT_MISMATCH: the key was used with another command, or not by coordctl run; the command was not started\n"
		code, _, stderr := command(t, "--endpoints", address, "--timeout", "1s", "run", "--key", "k", "--", "false")
		if code != exitOfRun+reason.ExitFingerprintMismatch || stderr != want {
			t.Errorf("exit code %d, %q, want %q", code, stderr, want)
		}
	})
}

// A run whose command has ended says of what it is not known: the recording, not the command.
func TestADoubtOfRunIsAboutTheRecording(t *testing.T) {
	doubt := &client.Error{Call: "Commit", Code: codes.Unavailable, MaybeApplied: true}
	refused := &client.Error{Call: "Commit", Code: codes.Unavailable, Reason: "NO_LEADER", Message: "the shard has no leader"}
	const lapses = "once the key lapses the next caller runs it again"
	for _, test := range []struct {
		err  error
		want string
	}{
		{doubt, "UNAVAILABLE: the command ended with 3, and it is not known whether the outcome was recorded: no answer in time; " +
			"`coordctl get` shows whether it was; if not, " + lapses},
		{refused, "NO_LEADER: the command ended with 3, and the outcome is not recorded: the shard has no leader; " + lapses},
	} {
		var out strings.Builder
		r := &runner{control: &control{world: world{stderr: &out}}}
		failed := r.notRecorded(ending{status: 3}, "the outcome is not recorded", "the outcome was recorded", test.err)
		if code := r.report(failed); code != exitNotRecorded || out.String() != "coordctl: "+test.want+"\n" {
			t.Errorf("exit code %d, %q, want %q", code, out.String(), test.want)
		}
	}
	var out strings.Builder
	r := &runner{control: &control{world: world{stderr: &out}}}
	r.report(r.left(ending{status: 137, stopped: errors.New("the key was purged")}))
	if !strings.HasSuffix(out.String(), "what it did is unknown, and nothing is recorded; "+lapses+"\n") {
		t.Errorf("%q", out.String())
	}
	for why, next := range map[reason.Reason]string{
		reason.ReservationNotFound: "the record is gone, and the next caller runs it again",
		reason.ReservationLost:     "another caller has been admitted since",
	} {
		out.Reset()
		r.report(r.left(ending{status: 137, stopped: &client.Error{Call: "Extend", Code: codes.NotFound, Reason: string(why)}}))
		if !strings.HasSuffix(out.String(), "nothing is recorded; "+next+"\n") {
			t.Errorf("%s: %q", why, out.String())
		}
	}
}

// The output may have been recorded before a node refuses it for its size. No refusal of what is
// committed in its place takes that doubt away, and what it conflicts with is not another's.
func TestADoubtBeforeOutputIsRefusedStays(t *testing.T) {
	const unknown = ": the command ended with 3, and it is not known whether the outcome was recorded: "
	for name, test := range map[string]struct {
		first, last error // of the output; of the status alone
		code        int
		want        string
	}{
		"recorded before":       {reason.Error(reason.OutcomeUnknown, ""), reason.Error(reason.CommitConflict, ""), exitNotRecorded, unknown},
		"not recorded this way": {reason.Error(reason.OutcomeUnknown, ""), reason.Error(reason.PermissionDenied, ""), exitNotRecorded, unknown},
		"recorded this way":     {reason.Error(reason.OutcomeUnknown, ""), nil, 3, ""},
		"another's":             {reason.Error(reason.NoLeader, ""), reason.Error(reason.CommitConflict, ""), exitNotRecorded, "; later callers get what was committed\n"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				answers := []error{test.first, reason.Error(reason.ResponseTooLarge, ""), test.last}
				commits := 0
				r, reservation, said := reserved(t, &stub{commit: func() error { commits++; return answers[commits-1] }}, time.Minute)
				code := r.report(r.settle(reservation, ending{status: 3}, newCapture()))
				if code != test.code || !strings.Contains(said.String(), test.want) || commits != 3 {
					t.Errorf("exit code %d after %d commits, %q", code, commits, said)
				}
			})
		})
	}
}

// refusedInDoubt answers each call of the first attempt so that it leaves a doubt, and those of later
// ones as it is told.
func refusedInDoubt(s *stub, later func() (*coordinatorv1.ReserveResponse, error)) *stub {
	s.reserve = func(call int) (*coordinatorv1.ReserveResponse, error) {
		if string(s.requests[call-1].GetAttemptId()) == string(s.requests[0].GetAttemptId()) {
			return nil, reason.Error(reason.OutcomeUnknown, "")
		}
		return later()
	}
	return s
}

// A run that may have been admitted with nobody hearing of it says so, however it ends after that:
// only what the record is takes the doubt away.
func TestADoubtOfRunOutlivesItsCall(t *testing.T) {
	refusal := func(why reason.Reason) func() (*coordinatorv1.ReserveResponse, error) {
		return func() (*coordinatorv1.ReserveResponse, error) { return nil, reason.Error(why, "") }
	}
	answer := func(r *coordinatorv1.ReserveResponse) func() (*coordinatorv1.ReserveResponse, error) {
		return func() (*coordinatorv1.ReserveResponse, error) { return r, nil }
	}
	pending := answer(&coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Pending{Pending: &coordinatorv1.Pending{
		Owner: "o", RetryAfter: durationpb.New(100 * time.Millisecond),
	}}})
	inDoubt := answer(&coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_InDoubt{InDoubt: &coordinatorv1.InDoubt{Owner: "o"}}})
	const (
		unknown = "it is not known whether the call was carried out; the command was not started; "
		reopens = "the key may be taken until it lapses"
		holds   = reopens + ", and in doubt from then on, until that is settled with coordctl resolve"
		own     = "that may be this run's own grant, which was lost on its way"
	)
	for name, test := range map[string]struct {
		later   func() (*coordinatorv1.ReserveResponse, error)
		onLapse string
		code    int
		reason  string
		applied string
		message string
	}{
		"another doubt":      {refusal(reason.OutcomeUnknown), "hold", 108, "OUTCOME_UNKNOWN", "maybe", unknown + holds},
		"no leader":          {refusal(reason.NoLeader), "hold", 108, "OUTCOME_UNKNOWN", "maybe", unknown + holds},
		"no leader, reopens": {refusal(reason.NoLeader), "reopen", 108, "OUTCOME_UNKNOWN", "maybe", unknown + reopens},
		"not allowed":        {refusal(reason.PermissionDenied), "hold", 108, "OUTCOME_UNKNOWN", "maybe", unknown + holds},
		"pending":            {pending, "hold", 3, "PENDING", "maybe", `it runs elsewhere (owner "o"), since 0s; the command was not started; ` + own + ": " + holds},
		"in doubt":           {inDoubt, "hold", 105, "IN_DOUBT", "maybe", "the command was not started; " + own + ": nothing ran under it"},
		"another's":          {refusal(reason.FingerprintMismatch), "hold", 106, "FINGERPRINT_MISMATCH", "no", "the command was not started"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				address := serve(t, refusedInDoubt(&stub{}, test.later))
				code, _, stderr := command(t, "--endpoints", address, "--timeout", "1s", "-o", "json",
					"run", "--key", "k", "--on-lapse", test.onLapse, "--no-wait", "--", "/no/such/command")
				var shown struct{ Error errorJSON }
				if err := json.Unmarshal([]byte(stderr), &shown); err != nil {
					t.Fatalf("%q: %v", stderr, err)
				}
				if got := shown.Error; code != test.code || got.Reason != test.reason || got.Applied != test.applied || !strings.HasSuffix(got.Message, test.message) {
					t.Errorf("exit code %d, %+v", code, got)
				}
			})
		})
	}
}

// A signal leaves no less of a doubt: neither one that comes once there has been one, nor that of a
// key that could not be given back.
func TestASignalOfRunKeepsTheDoubt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		const (
			holds      = " until it lapses, and in doubt from then on, until that is settled with coordctl resolve"
			notStarted = "coordctl: received SIGTERM; the command was not started"
		)
		signalled := func(s func(signals chan os.Signal) *stub, want string) {
			t.Helper()
			signals := make(chan os.Signal, signalsMost)
			code, stderr := runSignalled(t, s(signals), signals, "--timeout", "1s", "--on-lapse", "hold", "--", "true")
			if code != 143 || stderr != want+"\n" {
				t.Errorf("exit code %d, %q, want %q", code, stderr, want)
			}
		}
		signalled(func(signals chan os.Signal) *stub {
			return refusedInDoubt(&stub{}, func() (*coordinatorv1.ReserveResponse, error) {
				if len(signals) == 0 {
					signals <- syscall.SIGTERM
				}
				return nil, reason.Error(reason.NoLeader, "")
			})
		}, notStarted+"; the key may be taken"+holds)
		// Who was granted the key after that gives it back, and leaves none.
		signalled(func(signals chan os.Signal) *stub {
			return refusedInDoubt(&stub{}, func() (*coordinatorv1.ReserveResponse, error) {
				signals <- syscall.SIGTERM
				return grantedForAMinute(0)
			})
		}, notStarted)
		signalled(func(signals chan os.Signal) *stub {
			signals <- syscall.SIGTERM
			return &stub{reserve: grantedForAMinute, release: func(context.Context) error { return reason.Error(reason.PermissionDenied, "") }}
		}, "coordctl: the key could not be released, and stays taken"+holds+": the caller is not allowed to do this\n"+notStarted)
	})
}
