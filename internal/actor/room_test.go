package actor

import (
	"errors"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// A response that the caller has no room for is not read, and the refusal says so.
func TestResponsesAreReadWhereThereIsRoom(t *testing.T) {
	inBubble(t, nil, func(t *testing.T, s *testShard) {
		done := commit("k", s.grant("k", time.Minute), "done")
		of := done.Command.(admission.Commit)
		of.Response.Bytes = 4
		done.Command = of
		s.mustSubmit(done)
		id := of.Identity
		for _, request := range []Request{reserve("k", time.Minute), {Get: &id, Body: true, Received: time.Now()}} {
			var asked []int
			for _, room := range []bool{true, false} {
				request.Room = func(bytes int) bool {
					asked = append(asked, bytes)
					return room
				}
				if _, err := s.Submit(t.Context(), request); errors.Is(err, ErrNoRoom) == room || errors.Is(err, ErrOverloaded) == room {
					t.Errorf("room %t: %v", room, err)
				}
			}
			if len(asked) != 2 || asked[0] != 4 || asked[1] != 4 {
				t.Errorf("asked for %v bytes, want 4 twice", asked)
			}
		}
		// What reads no response needs no room.
		s.mustSubmit(Request{Get: &id, Received: time.Now(), Room: func(int) bool { return false }})
	})
}
