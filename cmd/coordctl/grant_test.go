package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
	"github.com/atmostonce/coordinator/internal/reason"
)

// grants answers each Reserve with a grant.
func grants(token string, remaining time.Duration) func(int) (*coordinatorv1.ReserveResponse, error) {
	return func(int) (*coordinatorv1.ReserveResponse, error) { return granting(token, remaining, nil), nil }
}

func granting(token string, remaining time.Duration, previous *coordinatorv1.Previous) *coordinatorv1.ReserveResponse {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: token, Fence: 1, Attempt: 1, Remaining: durationpb.New(remaining), Previous: previous,
	}}}
}

// takes is how long an answer takes: the time itself is what is looked at, and more of it does no harm.
func takes(d time.Duration) { <-time.After(d) }

// slow grants for less than its answer takes.
func slow(previous *coordinatorv1.Previous) func(int) (*coordinatorv1.ReserveResponse, error) {
	return func(int) (*coordinatorv1.ReserveResponse, error) {
		takes(200 * time.Millisecond)
		return granting("T", 200*time.Millisecond, previous), nil
	}
}

// A grant that is over when its answer comes admits nobody: somebody else may hold the key by then.
// It is given back, unless somebody else may act under the same attempt id.
func TestAGrantThatWasOverOnTheWayAdmitsNobody(t *testing.T) {
	leakless(t)
	id := strings.Repeat("a1", 16)
	refused := func(why reason.Reason) func(context.Context) error {
		return func(context.Context) error { return reason.Error(why, "") }
	}
	const over = "RESERVATION_LAPSED: the grant was over when it arrived: it is for 200ms from when it was asked for, and the answer took "
	for name, test := range map[string]struct {
		arguments string
		release   func(context.Context) error
		released  int
		applied   string
		became    string
	}{
		"given back":     {"reserve k", nil, 1, "no", "the key was given back"},
		"the token only": {"reserve k --token-only", nil, 1, "no", "the key was given back"},
		"by hand": {"reserve k --attempt-id " + id, nil, 0, "maybe",
			"the key stays taken until it lapses, since whoever else has this attempt id may act under it"},
		"taken over": {"reserve k", refused(reason.ReservationLost), 1, "no", "another caller has been admitted since"},
		"forgotten":  {"reserve k", refused(reason.ReservationNotFound), 1, "no", "the record is gone"},
		"refused": {"reserve k --on-lapse hold", refused(reason.PermissionDenied), 1, "maybe", "it could not be given back " +
			"(the caller is not allowed to do this), and the key stays taken until it lapses, and in doubt from then on, until that is settled with coordctl resolve"},
		"unknown": {"reserve k", refused(reason.DeadlineExceeded), 1, "maybe", "it is not known whether it was given back " +
			"(the call's deadline passed): if not, the key stays taken until it lapses"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stub{reserve: slow(nil), release: test.release}
			arguments := append(strings.Fields(test.arguments), "--endpoints", serve(t, s))
			code, stdout, stderr := command(t, arguments...)
			if code != reason.ExitNotOwner || stdout != "" || !strings.HasPrefix(stderr, "coordctl: "+over) ||
				!strings.Contains(stderr, ", so it admits nobody; "+test.became+". Reserve again") || strings.Count(stderr, "\n") != 1 {
				t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
			}
			if len(s.releases) != test.released || test.released == 1 && s.releases[0].GetToken() != "T" {
				t.Errorf("released: %v", s.releases)
			}
			if strings.Contains(test.arguments, "token-only") {
				return
			}
			code, stdout, stderr = command(t, append(arguments, "-o", "json")...)
			var shown map[string]errorJSON
			if err := json.Unmarshal([]byte(stderr), &shown); err != nil || code != reason.ExitNotOwner || stdout != "" ||
				shown["error"].Reason != string(reason.ReservationLapsed) || shown["error"].Applied != test.applied || shown["error"].AttemptID != "" {
				t.Errorf("exit code %d, stdout %q, stderr %q (%v)", code, stdout, stderr, err)
			}
		})
	}
}

// What is left is counted from when the try that was answered was sent, as package client counts it.
func TestWhatIsLeftIsCountedFromTheSending(t *testing.T) {
	leakless(t)
	window := time.Minute
	s := &stub{extend: func(context.Context) error { takes(100 * time.Millisecond); return nil }, extended: &window}
	s.reserve = func(call int) (*coordinatorv1.ReserveResponse, error) {
		if call == 1 {
			return nil, reason.Error(reason.NoLeader, "")
		}
		takes(100 * time.Millisecond)
		answer := granting("T", 40*time.Second, nil)
		answer.GetGranted().Waited = durationpb.New(20 * time.Second)
		return answer, nil
	}
	address := serve(t, s)
	for _, line := range []string{"reserve k", "extend k --token T"} {
		code, stdout, stderr := command(t, append(strings.Fields(line), "-o", "json", "--endpoints", address)...)
		var shown struct{ Remaining string }
		err := json.Unmarshal([]byte(stdout), &shown)
		left, failed := time.ParseDuration(shown.Remaining)
		if err != nil || failed != nil || code != reason.ExitDone || left > lease.Share(window)-100*time.Millisecond || left < window/2 {
			t.Errorf("%s: exit code %d, %q, %q", line, code, stdout, stderr)
		}
	}
	_, reservation, _ := reserved(t, &stub{}, time.Minute)
	if left, most := reservation.Remaining(), lease.Share(time.Minute); left > most || left < most-30*time.Second {
		t.Errorf("the client has %v left of a minute, and coordctl %v", left, most)
	}
}

// An extension that is over when its answer comes is the end of the ownership.
func TestAnExtensionThatWasOverOnTheWay(t *testing.T) {
	leakless(t)
	for extended, want := range map[time.Duration]struct {
		code int
		said string
	}{
		200 * time.Millisecond: {reason.ExitNotOwner, "coordctl: RESERVATION_LAPSED: the extension was over when it arrived: it is for 200ms "},
		0:                      {reason.ExitUnavailable, "coordctl: UNIMPLEMENTED: the coordinator gave an extension without a time; coordctl does not know"},
	} {
		s := &stub{extended: &extended, extend: func(context.Context) error { takes(extended); return nil }}
		code, stdout, stderr := command(t, "extend", "k", "--token", "T", "--endpoints", serve(t, s))
		if code != want.code || stdout != "" || !strings.HasPrefix(stderr, want.said) {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
}

// What is no grant admits nobody, and whether the key is taken is not known.
func TestWhatIsNoGrant(t *testing.T) {
	leakless(t)
	for _, reserve := range []func(int) (*coordinatorv1.ReserveResponse, error){grants("", time.Minute), grants("T", 0), grants("T", -time.Second)} {
		code, stdout, stderr := command(t, "reserve", "k", "--endpoints", serve(t, &stub{reserve: reserve}))
		const want = "coordctl: UNIMPLEMENTED: the coordinator gave a grant without a token or without a time, which admits nobody; " +
			"coordctl does not know whether the coordinator carried the call out; to ask again as the same attempt: --attempt-id "
		if code != reason.ExitUnavailable || stdout != "" || !strings.HasPrefix(stderr, want) {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
}

// Who gives a grant back passes on a lapse before it: the next owner is told of this attempt only. The
// Go client finds it.
func TestALapseIsPassedOn(t *testing.T) {
	leakless(t)
	lapsed := &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED, Fence: 7}
	released := func(why string) *coordinatorv1.Previous {
		return &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED, Reason: why, Fence: 9}
	}
	for _, test := range []struct {
		before *coordinatorv1.Previous
		want   client.Previous
	}{
		{nil, client.Previous{End: client.PreviousReleased, Reason: lease.WasOver, Fence: 9}},
		{released("out of stock"), client.Previous{End: client.PreviousReleased, Reason: lease.WasOver, Fence: 9}},
		{lapsed, client.Previous{End: client.PreviousLapsed, Fence: 7}},
		{released(lease.Unused(lease.GoneBy, 7)), client.Previous{End: client.PreviousLapsed, Fence: 7}},
	} {
		s := &stub{reserve: slow(test.before)}
		address := serve(t, s)
		if code, _, stderr := command(t, "reserve", "k", "--endpoints", address); code != reason.ExitNotOwner || len(s.releases) != 1 {
			t.Fatalf("exit code %d, %q", code, stderr)
		}
		s.answers(func(int) (*coordinatorv1.ReserveResponse, error) {
			return granting("T", time.Minute, released(s.releases[0].GetReason())), nil
		})
		c, err := client.Dial([]string{address}, client.WithDialer(reach), client.WithInsecure())
		if err != nil {
			t.Fatal(err)
		}
		reservation, err := c.Reserve(t.Context(), client.Identity{Key: "k"})
		if err != nil || reservation.Previous() != test.want {
			t.Errorf("%v: %+v (%v), want %+v", test.before, reservation.Previous(), err, test.want)
		}
		_ = c.Close()
	}
}
