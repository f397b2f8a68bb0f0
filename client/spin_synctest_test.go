package client_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// pendingAtOnce holds no answer back and names no time to come again.
type pendingAtOnce struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
	asked int
}

func (p *pendingAtOnce) Reserve(context.Context, *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	p.asked++
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Pending{Pending: &coordinatorv1.Pending{}}}, nil
}

// Who waits does not ask in a loop, whatever it is answered.
func TestWhoWaitsRestsBetweenAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		listener, service := bufconn.Listen(1<<16), &pendingAtOnce{}
		server := grpc.NewServer()
		coordinatorv1.RegisterCoordinatorServiceServer(server, service)
		served := make(chan error, 1)
		go func() { served <- server.Serve(listener) }()
		c, err := client.Dial([]string{"n1:7420"}, client.WithInsecure(), client.WithEndpointsOnly(), client.WithSessions(false),
			client.WithDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
		wantNone(t, err)
		began := time.Now()
		_, err = c.Reserve(t.Context(), id("k"), client.WithWait(10*time.Second))
		want(t, err, client.ErrPending)
		if took := time.Since(began); took < 9*time.Second || took > 11*time.Second || service.asked > 500 {
			t.Errorf("asked %d times in %v", service.asked, took)
		}
		wantNone(t, c.Close())
		server.Stop()
		wantNone(t, <-served)
	})
}
