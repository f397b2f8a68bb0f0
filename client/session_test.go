package client

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// ending is a context whose time is over after it has been asked for its error so many times.
type ending struct {
	context.Context
	mu    sync.Mutex
	after int
}

func (e *ending) Err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.after--; e.after >= 0 {
		return nil
	}
	return context.DeadlineExceeded
}

// The session of a call ends before it is sent, and then the time of its try does. That is a try
// that took too long and that was not sent, and another may be made.
func TestATryThatEndsWithItsSession(t *testing.T) {
	for after := range 4 {
		ended := make(chan struct{})
		close(ended)
		s := newSharing(nil, true)
		s.session = &session{calls: map[uint64]*sharedCall{}, queued: make(chan struct{}, 1), ended: ended}
		request := &coordinatorv1.ReleaseRequest{}
		call := &sharedCall{message: &coordinatorv1.SessionCall{Call: &coordinatorv1.SessionCall_Release{Release: request}}}
		var to peer.Peer
		_, err := callShared(&ending{Context: t.Context(), after: after}, s, call, (*coordinatorv1.SessionAnswer).GetRelease,
			func(ctx context.Context, _ *coordinatorv1.ReleaseRequest, _ ...grpc.CallOption) (*coordinatorv1.ReleaseResponse, error) {
				return nil, status.FromContextError(ctx.Err()).Err() // as gRPC does
			}, request, []grpc.CallOption{grpc.Peer(&to)})
		if failed := failure(callRelease, err, to.Addr != nil, false); err != nil && (failed.Code != codes.DeadlineExceeded || !failed.retriable || failed.MaybeApplied) {
			t.Errorf("over after %d looks: %+v", after, failed)
		}
	}
}
