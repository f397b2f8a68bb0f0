package client_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// granter grants whatever it is asked for, and knows of no shards.
type granter struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
}

func grant() *coordinatorv1.ReserveResponse {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: "AQAAAAAAAAAB7c7-TK87MpYfigjB0w5dPQ", Fence: 1, Attempt: 1, Remaining: durationpb.New(5 * time.Minute),
	}}}
}

func (granter) Reserve(context.Context, *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	return grant(), nil
}

func (granter) Commit(context.Context, *coordinatorv1.CommitRequest) (*coordinatorv1.CommitResponse, error) {
	return &coordinatorv1.CommitResponse{}, nil
}

// Session answers each message of calls with one of answers.
func (granter) Session(stream grpc.BidiStreamingServer[coordinatorv1.SessionRequest, coordinatorv1.SessionResponse]) error {
	for {
		request, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has ended it
		}
		answer := &coordinatorv1.SessionResponse{Shards: 3}
		for _, call := range request.GetCalls() {
			one := &coordinatorv1.SessionAnswer{Id: call.GetId()}
			switch call.GetCall().(type) {
			case *coordinatorv1.SessionCall_Reserve:
				one.Result = &coordinatorv1.SessionAnswer_Reserve{Reserve: grant()}
			case *coordinatorv1.SessionCall_Commit:
				one.Result = &coordinatorv1.SessionAnswer_Commit{Commit: &coordinatorv1.CommitResponse{}}
			default:
				continue
			}
			answer.Answers = append(answer.Answers, one)
		}
		if len(answer.Answers) > 0 {
			if err := stream.Send(answer); err != nil {
				return err
			}
		}
	}
}

// BenchmarkPair measures what the client and gRPC take for a Reserve and its Commit, with a
// server in the same process that only answers: allocations are those of both.
func BenchmarkPair(b *testing.B) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServiceServer(server, granter{})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		server.Stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	for _, sessions := range []bool{false, true} {
		for _, callers := range []int{2, 64} {
			b.Run(fmt.Sprintf("sessions=%v/callers=%d", sessions, callers), func(b *testing.B) {
				c, err := client.Dial([]string{listener.Addr().String()}, client.WithSessions(sessions))
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = c.Close() }()
				var next atomic.Int64
				b.ReportAllocs()
				b.SetParallelism(max(1, callers/2))
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						r, err := c.Reserve(b.Context(), id(fmt.Sprint(next.Add(1))))
						if err == nil {
							err = r.Commit(b.Context(), client.Response{Code: 200})
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}
