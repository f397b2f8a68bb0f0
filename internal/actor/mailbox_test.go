package actor

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Every kind of call but a Reserve may have the part of the mailbox that is kept.
func TestMailboxKeepsPlacesForWhatIsNoReserve(t *testing.T) {
	others := []Request{
		{Command: admission.Commit{}},
		{Command: admission.Release{}},
		{Command: admission.Extend{}},
		{Command: admission.Resolve{}},
		{Command: admission.Purge{}},
		{Get: &admission.Identity{}},
		{},
	}
	for _, test := range []struct{ callsMax, reserves int }{
		{4096, 3584}, {17, 14}, {16, 14}, {8, 7}, {3, 2}, {2, 1}, {1, 1},
	} {
		t.Run(fmt.Sprint(test.callsMax), func(t *testing.T) {
			for _, other := range others {
				m := newMailbox(test.callsMax, 100)
				m.open()
				for range test.reserves {
					if err := m.put(newCall(reserve("k", time.Minute), 0)); err != nil {
						t.Fatalf("a Reserve before the kept places: %v", err)
					}
				}
				for range test.callsMax - test.reserves {
					if err := m.put(newCall(reserve("k", time.Minute), 0)); !errors.Is(err, ErrMailboxFull) {
						t.Fatalf("a Reserve where only kept places are left: %v", err)
					}
					if err := m.put(newCall(other, 0)); err != nil {
						t.Fatalf("%T in a kept place: %v", other.Command, err)
					}
				}
				if err := m.put(newCall(other, 0)); !errors.Is(err, ErrMailboxFull) {
					t.Errorf("%T over all places: %v", other.Command, err)
				}
			}
		})
	}
}

func TestMailboxKeepsBytesForWhatIsNoReserve(t *testing.T) {
	m := newMailbox(100, 80)
	m.open()
	command := Request{Command: admission.Commit{}}
	for i, step := range []struct {
		request Request
		bytes   int64
		want    error
	}{
		{command, 60, nil},
		{reserve("k", time.Minute), 11, ErrMailboxFull},
		{reserve("k", time.Minute), 10, nil},
		{reserve("k", time.Minute), 1, ErrMailboxFull},
		{command, 11, ErrMailboxFull},
		{command, 10, nil},
		{command, 1, ErrMailboxFull},
	} {
		if err := m.put(newCall(step.request, step.bytes)); !errors.Is(err, step.want) {
			t.Errorf("step %d, %d bytes: %v, want %v", i, step.bytes, err, step.want)
		}
	}
}

// The largest response may be as large as the smallest mailbox, and its command is larger.
func TestAnEmptyMailboxTakesWhatIsLarger(t *testing.T) {
	m := newMailbox(100, 80)
	m.open()
	for _, want := range []error{nil, ErrMailboxFull} {
		if err := m.put(newCall(Request{Command: admission.Commit{}}, 81)); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

// Under a storm of Reserves those who have done their work can still say so.
func TestOwnersAreHeardUnderAStormOfReserves(t *testing.T) {
	const places, kept = 24, 3
	inBubble(t, func(c *Config) { c.MailboxCommandsMax = places }, func(t *testing.T, s *testShard) {
		owners := []Request{
			commit("a", s.grant("a", time.Minute), "done"),
			release("b", s.grant("b", time.Minute)),
			{Command: admission.Extend{Identity: key("c"), Token: s.grant("c", time.Minute), PendingTTL: time.Hour}, Received: time.Now()},
		}
		late := commit("d", s.grant("d", time.Minute), "done")

		held, ended := make(chan struct{}), make(chan error, places)
		if err := s.do(t.Context(), func() { <-held }); err != nil { // from here on the loop takes nothing out
			t.Fatal(err)
		}
		refused := func(request Request) error { // at once, or not at all
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := s.Submit(ctx, request)
			return err
		}
		submit := func(request Request) {
			go func() {
				reply, err := s.Submit(t.Context(), request)
				if err == nil && reply.Answer.Refusal != admission.None {
					err = fmt.Errorf("refused: %v", reply.Answer.Refusal)
				}
				ended <- err
			}()
			synctest.Wait()
		}
		for i := range places - kept {
			submit(reserve(fmt.Sprint("storm-", i), time.Minute))
		}
		for _, owner := range owners {
			if err := refused(reserve("storm", time.Minute)); !errors.Is(err, ErrMailboxFull) {
				t.Errorf("a Reserve in the storm: %v", err)
			}
			submit(owner)
		}
		if err := refused(late); !errors.Is(err, ErrMailboxFull) {
			t.Errorf("a Commit over all places: %v", err)
		}
		close(held)
		for range places {
			if err := <-ended; err != nil {
				t.Errorf("what was taken in: %v", err)
			}
		}
		s.mustSubmit(late)
	})
}
