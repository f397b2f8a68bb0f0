package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// Every call, on one node.
func TestLifeOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1), client.WithReserveDefaults(client.WithOwner("me")))
		r := granted(t, c, "k", client.WithFingerprint([]byte("f")))
		if r.Attempt() != 1 || r.Fence() == 0 || r.Token() == "" || r.Previous().End != client.PreviousNone || r.Identity() != id("k") {
			t.Errorf("reservation: %+v", r)
		}
		_, err := c.Reserve(t.Context(), id("k"), client.WithFingerprint([]byte("f")))
		var pending *client.PendingError
		if want(t, err, client.ErrPending); !errors.As(err, &pending) || pending.Owner != "me" || pending.Attempt != 1 || client.RetryAfter(err) <= 0 {
			t.Errorf("pending: %+v", pending)
		}
		_, err = c.Reserve(t.Context(), id("k"))
		want(t, err, client.ErrFingerprintMismatch)

		wantNone(t, r.Extend(t.Context(), time.Hour))
		if left := r.Remaining(); left < 59*time.Minute || left > time.Hour {
			t.Errorf("remaining after Extend: %v", left)
		}
		response := client.Response{Code: 201, ContentType: "text/plain", Body: []byte("made"),
			Headers: []client.Header{{Name: "B", Value: "2"}, {Name: "a", Value: "1"}, {Name: "B", Value: "3"}}}
		wantNone(t, r.Commit(t.Context(), response))
		if !errors.Is(context.Cause(r.Context()), client.ErrSettled) || r.Context().Err() != context.Canceled {
			t.Errorf("context after Commit: %v, %v", r.Context().Err(), context.Cause(r.Context()))
		}
		wantNone(t, r.Commit(t.Context(), response))
		want(t, r.Commit(t.Context(), client.Response{Code: 500}), client.ErrConflict)
		want(t, r.Release(t.Context(), "no"), client.ErrAlreadyCommitted)
		want(t, r.Extend(t.Context(), 0), client.ErrSettled)

		_, err = c.Reserve(t.Context(), id("k"), client.WithFingerprint([]byte("f")))
		var committed *client.CommittedError
		if want(t, err, client.ErrCommitted); !errors.As(err, &committed) || committed.Response.Code != 201 ||
			string(committed.Response.Body) != "made" || committed.Response.ContentType != "text/plain" ||
			len(committed.Response.Headers) != 3 || committed.Response.Headers[2].Value != "3" || committed.Remaining <= 0 {
			t.Errorf("committed: %+v", committed)
		}
		record, err := c.Get(t.Context(), id("k"))
		wantNone(t, err)
		if record.State != client.StateCommitted || record.Fence != r.Fence() || record.Identity.Namespace != "default" ||
			record.Owner != "me" || record.Response.Code != 201 || len(record.Response.Body) != 0 || record.CommittedAt.IsZero() {
			t.Errorf("record: %+v", record)
		}
		record, err = c.Get(t.Context(), id("k"), client.WithBody())
		if err != nil || string(record.Response.Body) != "made" {
			t.Errorf("body: %+v, %v", record, err)
		}
		_, err = c.Get(t.Context(), id("nobody's"))
		if want(t, err, client.ErrNotFound); errors.Is(err, client.ErrLost) {
			t.Error("nobody has lost anything")
		}
	})
}

func TestReleaseTellsTheNextOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		first := granted(t, c, "k")
		wantNone(t, first.Release(first.Context(), "out of stock")) // its own context does not end it
		wantNone(t, first.Release(t.Context(), "out of stock"))
		want(t, first.Commit(t.Context(), client.Response{}), client.ErrAlreadyReleased)
		second := granted(t, c, "k")
		if p := second.Previous(); p.End != client.PreviousReleased || p.Reason != "out of stock" || p.Fence != first.Fence() {
			t.Errorf("previous: %+v", p)
		}
		want(t, first.Release(t.Context(), ""), client.ErrLost)
		want(t, first.Commit(t.Context(), client.Response{}), client.ErrLost)
	})
}

func TestHoldAndResolve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		for key, settle := range map[string]func(revision uint64) error{
			"applied": func(revision uint64) error {
				return c.ResolveApplied(t.Context(), id("applied"), revision, client.Response{Code: 200}, "seen on the exchange")
			},
			"not": func(revision uint64) error {
				return c.ResolveNotApplied(t.Context(), id("not"), revision, "not there")
			},
		} {
			r := granted(t, c, key, client.WithOnLapse(client.Hold), client.WithPendingTTL(time.Second), client.WithOwner("me"))
			<-r.Context().Done()
			time.Sleep(time.Second)
			_, err := c.Reserve(t.Context(), id(key))
			var doubt *client.InDoubtError
			if want(t, err, client.ErrInDoubt); !errors.As(err, &doubt) || doubt.Owner != "me" || doubt.Age < time.Second {
				t.Errorf("in doubt: %+v", doubt)
			}
			record, err := c.Get(t.Context(), id(key))
			wantNone(t, err)
			if record.State != client.StateInDoubt || record.OnLapse != client.Hold {
				t.Errorf("record: %+v", record)
			}
			want(t, settle(record.Revision-1), client.ErrRevisionMismatch)
			wantNone(t, settle(record.Revision))
			wantNone(t, settle(record.Revision))
			want(t, settle(record.Revision+1000), client.ErrRevisionMismatch)
		}
		want(t, c.ResolveNotApplied(t.Context(), id("none"), 1, ""), client.ErrNotFound)
		_, err := c.Reserve(t.Context(), id("applied"))
		want(t, err, client.ErrCommitted)
		if p := granted(t, c, "not").Previous(); p.End != client.PreviousReleased || p.Reason != "not there" {
			t.Errorf("previous: %+v", p)
		}
	})
}

// The lapsed owner's Commit counts as long as nobody else was admitted, and under its own
// context too, which is over.
func TestLateCommitUnderItsOwnContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		r := granted(t, c, "k", client.WithPendingTTL(time.Second))
		within, cancel := r.Within(t.Context())
		defer cancel()
		derived, stop := context.WithTimeout(within, time.Hour)
		defer stop()
		<-derived.Done()
		time.Sleep(5 * time.Second)
		want(t, r.Extend(t.Context(), 0), client.ErrLapsed)
		wantNone(t, r.Commit(derived, client.Response{Code: 7}))
		record, err := c.Get(t.Context(), id("k"))
		if err != nil || !record.Late || record.Response.Code != 7 {
			t.Errorf("record: %+v, %v", record, err)
		}
	})
}

func TestArgumentsAreRefusedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		for field, call := range map[string]func() error{
			"identity.key":       func() error { _, err := c.Reserve(t.Context(), client.Identity{}); return err },
			"identity.operation": func() error { _, err := c.Get(t.Context(), client.Identity{Operation: "\xff", Key: "k"}); return err },
			"pending_ttl":        func() error { _, err := c.Reserve(t.Context(), id("k"), client.WithPendingTTL(0)); return err },
			"retention":          func() error { _, err := c.Reserve(t.Context(), id("k"), client.WithRetention(-1)); return err },
			"on_lapse":           func() error { _, err := c.Reserve(t.Context(), id("k"), client.WithOnLapse(9)); return err },
			"response.code":      func() error { return granted(t, c, "code").Commit(t.Context(), client.Response{Code: -1}) },
		} {
			began := time.Now()
			err := call()
			want(t, err, client.ErrInvalidArgument)
			var failed *client.Error
			if !errors.As(err, &failed) || len(failed.Violations) != 1 || failed.Violations[0].Field != field || failed.MaybeApplied {
				t.Errorf("%s: %+v", field, failed)
			}
			if took := time.Since(began); took > 0 {
				t.Errorf("%s: tried for %v", field, took)
			}
		}
	})
}

func TestResponsesThatAreTooLarge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		for key, size := range map[string]int{"over the limit": 1<<20 + 1, "over what can be sent": 3 << 20} {
			r := granted(t, c, key)
			want(t, r.Commit(t.Context(), client.Response{Body: make([]byte, size)}), client.ErrResponseTooLarge)
			wantNone(t, r.Commit(t.Context(), client.Response{Code: 200}))
		}
	})
}

func TestWaitUntilCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 3))
		owner := granted(t, c, "k")
		go func() {
			time.Sleep(90 * time.Second) // longer than one call may be held back
			_ = owner.Commit(context.Background(), client.Response{Code: 1})
		}()
		began := time.Now()
		_, err := c.Reserve(t.Context(), id("k"), client.WithWait(3*time.Minute))
		want(t, err, client.ErrCommitted)
		if took := time.Since(began); took < 90*time.Second || took > 92*time.Second {
			t.Errorf("waited %v", took)
		}

		owner = granted(t, c, "k2")
		began = time.Now()
		_, err = c.Reserve(t.Context(), id("k2"), client.WithWait(10*time.Second))
		want(t, err, client.ErrPending)
		if took := time.Since(began); took < 10*time.Second || took > 11*time.Second {
			t.Errorf("waited %v", took)
		}
		// Where the caller's deadline is sooner than the wait the answer still is one.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err = c.Reserve(ctx, id("k2"), client.WithWait(time.Minute))
		want(t, err, client.ErrPending)
		wantNone(t, owner.Release(t.Context(), ""))
	})
}
