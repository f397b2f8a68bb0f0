package shard

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// nowhere is a directory of members that are all at one address.
type nowhere struct{}

func (nowhere) NodeID(raft.ServerID) string                          { return "n2" }
func (nowhere) PeerAddress(raft.ServerID, raft.ServerAddress) string { return "n2:7430" }
func (nowhere) ClientAddress(raft.ServerID) string                   { return "" }

// A node that was replaced is dialed no longer once nothing is forwarded to it any more.
func TestWhoIsNotCalledIsNotDialed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials atomic.Int64
		dial := func(context.Context, raft.ServerID, string) (net.Conn, error) {
			dials.Add(1)
			return nil, errors.New("connection refused")
		}
		r := &Router{cfg: Config{Directory: nowhere{}, CallDial: dial}, calls: make(map[raft.ServerID]*grpc.ClientConn)}
		call := func() {
			connection, err := r.Call(Leader{ServerID: "n2/lost"})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := coordinatorv1.NewAdminServiceClient(connection).Members(t.Context(), &coordinatorv1.MembersRequest{}); err == nil {
				t.Fatal("nobody has answered")
			}
		}
		for range 2 { // it is dialed again when it is called again
			before := dials.Load()
			call()
			if dials.Load() == before {
				t.Error("it was not dialed")
			}
			time.Sleep(2 * callIdle)
			quiet := dials.Load()
			time.Sleep(time.Hour)
			if more := dials.Load() - quiet; more != 0 {
				t.Errorf("it was dialed %d times in an hour in which nobody called it", more)
			}
		}
		if err := r.Disconnect(); err != nil {
			t.Error(err)
		}
	})
}
