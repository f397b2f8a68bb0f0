package rpc_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

// Who begins calls and sends nothing takes no more of a node than may be under way at a time, of
// whichever service they are; and what was refused for that has changed nothing.
func TestCallsAtATimeAreBounded(t *testing.T) {
	const most = 4
	for name, method := range map[string]string{
		"calls":    coordinatorv1.CoordinatorService_Reserve_FullMethodName,
		"listings": coordinatorv1.AdminService_ListRecords_FullMethodName,
		"sessions": coordinatorv1.CoordinatorService_Session_FullMethodName,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				under := rpc.NewCalls()
				n := start(t, "n1", func(cfg *rpc.Config) {
					cfg.Calls, cfg.Settings.CallsMax = []*rpc.Calls{under}, most
				})
				ctx, cancel := context.WithCancel(t.Context())
				for range most {
					_, err := n.connection.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
					wantNone(t, err)
				}
				synctest.Wait()
				if calls := under.UnderWay(); calls != most {
					t.Fatalf("%d calls are under way, want %d", calls, most)
				}
				_, err := n.coordinator.Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: key("k")})
				if failure := wantReason(t, err, reason.Overloaded); failure.Applied != reason.No || !strings.HasSuffix(failure.Message, "as may be: 4") {
					t.Errorf("%+v", failure)
				}
				if calls, _ := counted(under); calls["Reserve OVERLOADED"] != 1 {
					t.Errorf("counted %v", calls)
				}
				cancel()
				synctest.Wait()
				if calls := under.UnderWay(); calls != 0 {
					t.Errorf("%d calls are under way", calls)
				}
				granted(t, n, &coordinatorv1.ReserveRequest{Identity: key("k")})
				n.server.Stop()
				_ = n.connection.Close()
			})
		})
	}
}

// A call has no more time for its message than it has altogether.
func TestACallWhoseMessageDoesNotCome(t *testing.T) {
	for name, its := range map[string]time.Duration{
		"without a deadline": 0,
		"with a late one":    24 * time.Hour,
		"with an early one":  time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				under := rpc.NewCalls()
				n := start(t, "n1", func(cfg *rpc.Config) { cfg.Calls = []*rpc.Calls{under} })
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				most := rpc.Default().WantedForDefault + admission.WaitMax
				if its > 0 {
					ctx, cancel = context.WithTimeout(ctx, its)
					most = min(most, its)
				}
				defer cancel()
				began := time.Now()
				stream, err := n.connection.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, coordinatorv1.CoordinatorService_Reserve_FullMethodName)
				wantNone(t, err)
				if err := stream.RecvMsg(&coordinatorv1.ReserveResponse{}); status.Code(err) != codes.DeadlineExceeded || time.Since(began) != most {
					t.Errorf("after %v, want %v: %v", time.Since(began), most, err)
				}
				synctest.Wait()
				if calls := under.UnderWay(); calls != 0 {
					t.Errorf("%d calls are under way", calls)
				}
				n.server.Stop()
				_ = n.connection.Close()
			})
		})
	}
}

// Who begins calls without end and sends none keeps others out for some seconds at most, and who sends
// what it begins is not ended for it, however full it is.
func TestWhoSendsNothingIsEnded(t *testing.T) {
	const most = 600
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.CallsMax, cfg.Settings.LeaderWait = most, time.Minute })
		shardOf := func(k string) int { return admission.Identity{Namespace: "default", Key: k}.Shard(shardCount) }
		free := "free"
		for shardOf(free) == shardOf("held") {
			free += "r"
		}
		n.shards.At(shardOf("held")).SetLeader(shard.Leader{})
		listener := bufconn.Listen(1 << 16)
		n.serve(t, listener)
		// Well-behaved: calls that wait for a leader.
		waiting := make(chan error, most/2)
		for range most / 2 {
			go func() {
				_, err := n.coordinator.Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: key("held")})
				waiting <- err
			}()
		}
		synctest.Wait()
		mute := dialBare(t, listener)
		for i := range most / 2 {
			mute.begin(uint32(2*i+1), coordinatorv1.CoordinatorService_Reserve_FullMethodName)
		}
		synctest.Wait()
		began := time.Now()
		for {
			_, err := n.coordinator.Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: key(free)})
			if err == nil {
				break
			}
			wantReason(t, err, reason.Overloaded)
			time.Sleep(100 * time.Millisecond)
		}
		if took := time.Since(began); took < 2*time.Second || took > 5*time.Second {
			t.Errorf("others were kept out for %v", took)
		}
		for range most / 2 {
			wantReason(t, <-waiting, reason.NoLeader)
		}
		if took := time.Since(began); took < 40*time.Second {
			t.Errorf("they have waited for %v", took)
		}
		_ = mute.connection.Close()
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// One call that is refused is enough for that: others may ask seldom.
func TestWhoSendsNothingIsEndedWhereOthersAskSeldom(t *testing.T) {
	const most = 300
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.CallsMax = most })
		listener := bufconn.Listen(1 << 16)
		n.serve(t, listener)
		for range 2 {
			mute := dialBare(t, listener)
			for i := range most {
				mute.begin(uint32(2*i+1), coordinatorv1.CoordinatorService_Reserve_FullMethodName)
			}
			time.Sleep(10 * time.Second)
			_, err := n.coordinator.Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: key("k")})
			wantReason(t, err, reason.Overloaded)
			time.Sleep(5 * time.Second)
			_, err = n.coordinator.Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: key("k")})
			wantNone(t, err)
			_ = mute.connection.Close()
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}

// Nor does it help to begin them over several connections, few over each, and others for those that
// are ended. Who has a few on their way is left alone.
func TestWhoSendsNothingOverSeveralConnections(t *testing.T) {
	const most, connections = 600, 6
	synctest.Test(t, func(t *testing.T) {
		n := start(t, "n1", func(cfg *rpc.Config) { cfg.Settings.CallsMax = most })
		listener := bufconn.Listen(1 << 16)
		n.serve(t, listener)
		slow := dialBare(t, listener)
		const few = 5
		request := framed(t, &coordinatorv1.GetRequest{Identity: key("k")})
		for i := range few {
			slow.begin(uint32(2*i+1), coordinatorv1.CoordinatorService_Get_FullMethodName)
			slow.send(uint32(2*i+1), request[:7])
		}
		var mute []*bareClient
		begin := func() *bareClient {
			m := dialBare(t, listener)
			for i := range most / connections {
				m.begin(uint32(2*i+1), coordinatorv1.CoordinatorService_Reserve_FullMethodName)
			}
			return m
		}
		for range connections {
			mute = append(mute, begin())
		}
		synctest.Wait()
		let, again := time.Now(), 0
		var longest, later time.Duration
		for began := time.Now(); time.Since(began) < 20*time.Second; time.Sleep(100 * time.Millisecond) {
			var gone []int
			for i, m := range mute {
				select {
				case <-m.ended:
					gone = append(gone, i)
				default:
				}
			}
			if _, err := n.coordinator.Reserve(t.Context(), &coordinatorv1.ReserveRequest{Identity: key("k")}); err == nil {
				let = time.Now()
			} else {
				wantReason(t, err, reason.Overloaded)
			}
			longest = max(longest, time.Since(let))
			if again > 0 {
				later = max(later, time.Since(let))
			}
			for _, i := range gone {
				_ = mute[i].connection.Close()
				mute[i] = begin()
				again++
			}
		}
		if longest > 4*time.Second || later > 2*time.Second || again < connections {
			t.Errorf("others were kept out for %v, and for %v once connections had been ended; %d were", longest, later, again)
		}
		select {
		case <-slow.ended:
			t.Error("the connection over which few were on their way was ended")
		default:
			for i := range few {
				slow.send(uint32(2*i+1), request[7:])
				wantNone(t, slow.framer.WriteData(uint32(2*i+1), true, nil))
			}
			synctest.Wait()
			if slow.answers() != few {
				t.Errorf("%d calls of %d were answered", slow.answers(), few)
			}
		}
		for _, m := range append(mute, slow) {
			_ = m.connection.Close()
		}
		n.server.Stop()
		_ = n.connection.Close()
	})
}
