package client_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// answering answers each Reserve with the same.
type answering struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
	answer   *coordinatorv1.ReserveResponse
	reserves chan struct{}
}

func (a *answering) Reserve(context.Context, *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	select {
	case a.reserves <- struct{}{}:
	default: // nobody looks any more
	}
	return a.answer, nil
}

// What is no grant admits nobody, whatever it is called: who gave it may have taken the key all the
// same, and it is asked for once more to be given back.
func TestWhatIsNoGrant(t *testing.T) {
	for name, outcome := range map[string]*coordinatorv1.ReserveResponse{
		"without a token":      grantOf("", time.Minute, 0),
		"without a time":       {Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{Token: "T", Fence: 1}}},
		"with no time":         grantOf("T", 0, time.Minute),
		"with less than none":  grantOf("T", -time.Second, time.Minute),
		"an unknown outcome":   {},
		"a grant of no fields": {Outcome: &coordinatorv1.ReserveResponse_Granted{}},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			wantNone(t, err)
			server, answers := grpc.NewServer(), &answering{answer: outcome, reserves: make(chan struct{}, 2)}
			coordinatorv1.RegisterCoordinatorServiceServer(server, answers)
			ended := make(chan error, 1)
			go func() { ended <- server.Serve(listener) }()
			defer func() { server.Stop(); wantNone(t, <-ended) }()
			c, err := client.Dial([]string{listener.Addr().String()}, client.WithSettleTimeout(time.Second))
			wantNone(t, err)
			r, err := c.Reserve(t.Context(), id("k"))
			if r != nil {
				t.Fatalf("admitted: %+v", r)
			}
			want(t, err, client.ErrUnknown, client.ErrUnavailable)
			for asked := range 2 {
				select {
				case <-answers.reserves:
				case <-time.After(30 * time.Second):
					t.Fatalf("it was asked for %d times, and not given back", asked)
				}
			}
			_ = c.Close()
		})
	}
}

func grantOf(token string, remaining, waited time.Duration) *coordinatorv1.ReserveResponse {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: token, Fence: 1, Attempt: 1, Remaining: durationpb.New(remaining), Waited: durationpb.New(waited),
	}}}
}
