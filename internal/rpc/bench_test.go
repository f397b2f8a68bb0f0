package rpc_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// BenchmarkDuplicate measures what a server and gRPC take for a Reserve of a key that is
// committed, over shards in memory, with a client in the same process that only asks.
func BenchmarkDuplicate(b *testing.B) {
	n := start(b, "n1", nil)
	duplicate := &coordinatorv1.ReserveRequest{Identity: key("taken"), AttemptId: attempt(2), PendingTtl: durationpb.New(time.Minute)}
	first, err := n.coordinator.Reserve(b.Context(), &coordinatorv1.ReserveRequest{Identity: key("taken"), AttemptId: attempt(1)})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := n.coordinator.Commit(b.Context(), &coordinatorv1.CommitRequest{
		Identity: key("taken"), Token: first.GetGranted().GetToken(), Response: &coordinatorv1.Response{Code: 200},
	}); err != nil {
		b.Fatal(err)
	}
	const timeout = 10 * time.Second
	replayed := func(b *testing.B, answer *coordinatorv1.ReserveResponse) {
		b.Helper()
		if answer.GetCommitted().GetResponse().GetCode() != 200 {
			b.Fatalf("got %v", answer)
		}
	}
	b.Run("a call each", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			ctx, cancel := context.WithTimeout(b.Context(), timeout)
			answer, err := n.coordinator.Reserve(ctx, duplicate)
			cancel()
			if err != nil {
				b.Fatal(err)
			}
			replayed(b, answer)
		}
	})
	b.Run("session", func(b *testing.B) {
		const together = 32
		stream, err := n.coordinator.Session(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		for done := 0; done < b.N; {
			message := &coordinatorv1.SessionRequest{}
			for range min(together, b.N-done) {
				done++
				message.Calls = append(message.Calls, &coordinatorv1.SessionCall{
					Id: uint64(done), Timeout: durationpb.New(timeout),
					Call: &coordinatorv1.SessionCall_Reserve{Reserve: duplicate},
				})
			}
			if err := stream.Send(message); err != nil {
				b.Fatal(err)
			}
			for left := len(message.GetCalls()); left > 0; {
				answers, err := stream.Recv()
				if err != nil {
					b.Fatal(err)
				}
				for _, answer := range answers.GetAnswers() {
					replayed(b, answer.GetReserve())
					left--
				}
			}
		}
	})
}
