package actor

import (
	"context"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Deciding looks at the state with the store's lock held for reading. Asking the store for
// more from there would wait for whoever waits to change the state, who waits for the
// look to end: for good. Calls without an identity, which listings make, did that.
func TestDecidingAsksTheStoreForNothingMore(t *testing.T) {
	s := openShard(t, t.TempDir(), nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := commit("k", s.grant("k", time.Minute), "done")
	of := done.Command.(admission.Commit)
	of.Response.Bytes = 4
	done.Command = of
	s.mustSubmit(done)
	id := of.Identity

	// What a call has room for is asked while the state is looked at. The first one holds the
	// actor there until the others lie in the mailbox, to be decided in one look.
	looking, submitted, answers := make(chan struct{}), make(chan struct{}), make(chan error, 3)
	submit := func(request Request) {
		request.Received = time.Now()
		_, err := s.Submit(ctx, request)
		answers <- err
	}
	go submit(Request{Get: &id, Body: true, Room: func(int) bool {
		close(looking)
		<-submitted
		return true
	}})
	<-looking
	await := func(depth int) {
		for now, _ := s.mailbox.depth(); now < depth; now, _ = s.mailbox.depth() {
			if ctx.Err() != nil {
				t.Fatal("the call does not lie in the mailbox")
			}
		}
	}
	go submit(Request{Get: &id, Body: true, Room: func(int) bool {
		go func() { _ = s.group.Store().Flush() }() // takes the lock as an update does
		<-time.After(200 * time.Millisecond)        // time to wait for it
		return true
	}})
	await(1)
	go submit(Request{})
	await(2)
	close(submitted)
	for range cap(answers) {
		if err := <-answers; err != nil {
			t.Fatalf("a call was not answered: %v", err) // what hangs cannot be closed
		}
	}
	s.close()
}
