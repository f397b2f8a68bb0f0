package rpc

import (
	"context"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"

	"github.com/atmostonce/coordinator/internal/metakey"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/shard"
)

// Metadata keys. The first is set on a call that one node forwards to another. The second
// is for who expects a cluster, see [server.expected]. The others are headers of every
// answer, where they are known.
const (
	ForwardedKey = metakey.Forwarded
	ClusterKey   = metakey.Cluster
	ShardKey     = metakey.Shard
	ShardsKey    = metakey.Shards
	LeaderKey    = metakey.Leader
)

// server is what the two services share.
type server struct {
	shards      Shards
	cluster     Cluster
	membership  Membership
	settings    Settings
	storageFull func() bool
	space       func() string
	codec       *codec
	logger      *slog.Logger
	stopping    <-chan struct{}
	closing     <-chan struct{}
	unsent      *unsent
	sessions    sessionRoom
	workers     *workers                      // of all sessions
	headers     []atomic.Pointer[shardHeader] // by shard
}

// hop is one call to one shard, wherever it is led.
type hop[A any] struct {
	// here carries the call out on this node's replica, which leads.
	here func(context.Context, Replica) (A, error)
	// there sends it to the leader's node.
	there func(context.Context, grpc.ClientConnInterface, ...grpc.CallOption) (A, error)
	// reads says that the call changes nothing, so that a lost answer is no doubt.
	reads bool
}

// passOn is a hop's way there for a request that goes on as it is: with the method of a
// client S, such as [coordinatorv1.CoordinatorServiceClient.Commit].
func passOn[S, Q, A any](
	client func(grpc.ClientConnInterface) S, method func(S, context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) func(context.Context, grpc.ClientConnInterface, ...grpc.CallOption) (A, error) {
	return func(ctx context.Context, connection grpc.ClientConnInterface, options ...grpc.CallOption) (A, error) {
		return method(client(connection), ctx, request, options...)
	}
}

// route carries a call out where its shard is led, and tells the caller where that
// is. It is for calls about one shard.
func route[A any](ctx context.Context, s *server, number int, call hop[A]) (A, error) {
	answer, leader, err := deliver(ctx, s, number, call)
	s.tell(ctx, number, leader)
	return answer, err
}

// tell tells the caller which shard its call was about, and where that is led, in the
// headers of the answer. An answer of a session has fields for that.
func (s *server) tell(ctx context.Context, number int, leader string) {
	if call, ok := ctx.Value(toldKey{}).(*told); ok {
		call.shard, call.leader = proto.Uint32(uint32(number)), leader
		return
	}
	// It fails outside a server only, where nobody looks at headers.
	_ = grpc.SetHeader(ctx, s.header(number, leader))
}

// shardHeader are the headers of the answers about one shard, as long as it has the leader.
type shardHeader struct {
	leader string
	header metadata.MD
}

// header returns the headers that tell of a shard. Nearly all answers say the same, so they are
// made once for each leader; gRPC copies them.
func (s *server) header(number int, leader string) metadata.MD {
	if known := s.headers[number].Load(); known != nil && known.leader == leader {
		return known.header
	}
	header := metadata.Pairs(ShardKey, strconv.Itoa(number), ShardsKey, strconv.Itoa(s.shards.Shards()))
	if leader != "" {
		header.Set(LeaderKey, leader)
	}
	s.headers[number].Store(&shardHeader{leader, header})
	return header
}

// told is what a call of a session is told in its answer, and other calls in headers. It
// is found in the context of the former.
type told struct {
	shard  *uint32
	leader string
}

type toldKey struct{}

// deliver is [route] without the headers: it returns the leader's client address,
// or "" where that is not known.
func deliver[A any](ctx context.Context, s *server, number int, call hop[A]) (answer A, clientAddress string, err error) {
	replica := s.shards.Replica(number)
	forwarded := isForwarded(ctx)
	leader, err := s.leader(ctx, replica, forwarded)
	switch {
	case err != nil:
	case leader.Self:
		if answer, err = call.here(ctx, replica); err != nil {
			err = s.fault(err)
			// Leadership may have gone with the failure.
			leader = replica.Leader()
		}
	case !leader.Known():
		err = s.noLeader()
	case forwarded:
		err = reason.Error(reason.NoLeader, "this node does not lead the shard, and the call was forwarded already")
	default:
		return forward(ctx, s, replica, leader, call)
	}
	return answer, leader.ClientAddress, err
}

// leader returns the shard's leader. Where there is none it waits for one, unless
// the call was forwarded: then the first node waits.
func (s *server) leader(ctx context.Context, replica Replica, forwarded bool) (shard.Leader, error) {
	if err := ctx.Err(); err != nil {
		return shard.Leader{}, s.fault(err)
	}
	if leader := replica.Leader(); leader.Known() || forwarded {
		return leader, nil
	}
	wait := s.settings.LeaderWait
	if deadline, ok := ctx.Deadline(); ok {
		// Leave some of the caller's time for the answer: NO_LEADER says that nothing
		// was applied, a deadline that passes says nothing.
		wait = min(wait, time.Until(deadline)*3/4)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		changed := replica.LeaderChanged()
		if leader := replica.Leader(); leader.Known() {
			return leader, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			return replica.Leader(), nil
		case <-s.closing:
			return replica.Leader(), nil
		case <-ctx.Done():
			// Nothing was asked of anybody yet, so this may be said for sure.
			return shard.Leader{}, s.noLeader()
		}
	}
}

// forward sends the call to its leader, once, with what is left of its deadline.
func forward[A any](ctx context.Context, s *server, replica Replica, leader shard.Leader, call hop[A]) (answer A, clientAddress string, err error) {
	connection, err := s.shards.Call(leader)
	if err != nil {
		s.logger.Warn("cannot forward a call", "leader", leader.NodeID, "error", err)
		return answer, leader.ClientAddress, reason.Error(reason.NoLeader, "the shard's leader cannot be reached from this node")
	}
	// What came with the call stays here: only the mark goes on.
	outgoing, abandon := context.WithCancel(metadata.NewOutgoingContext(ctx, metadata.Pairs(ForwardedKey, "1")))
	defer abandon()
	go abandonWhenMoved(outgoing, abandon, replica, leader)
	// gRPC fills in the peer once the call has been given a stream on a connection:
	// before that it cannot have been sent.
	var (
		to     peer.Peer
		header metadata.MD
	)
	answer, err = call.there(outgoing, connection, grpc.Peer(&to), grpc.Header(&header), grpc.ForceCodecV2(codecOfMessages()))
	if err != nil {
		err = s.outcome(ctx, err, to.Addr != nil, call.reads)
	}
	clientAddress = leader.ClientAddress
	if told := header.Get(LeaderKey); len(told) > 0 {
		clientAddress = told[0] // it knows better
	}
	return answer, clientAddress, err
}

// How long a leader that is one no more has to answer what it was asked before: it may
// have answered already, or know for sure that it did nothing.
const (
	movedGrace = 500 * time.Millisecond // once another leads
	lostGrace  = 2 * time.Second        // while nobody does: about what it takes to find another
)

// abandonWhenMoved ends a forwarded call once another node leads, or for some time none
// that this one knows: a leader that is frozen or cut off answers nothing any more, and
// its successor knows the truth. It ends with the call.
func abandonWhenMoved(ctx context.Context, abandon context.CancelFunc, replica Replica, asked shard.Leader) {
	for {
		changed := replica.LeaderChanged()
		var grace <-chan time.Time // never, while it leads
		switch leader := replica.Leader(); {
		case leader.ServerID == asked.ServerID:
		case leader.Known():
			grace = time.After(movedGrace)
		default:
			grace = time.After(lostGrace)
		}
		select {
		case <-changed:
		case <-grace:
			abandon()
			return
		case <-ctx.Done():
			return
		}
	}
}

func isForwarded(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, ForwardedKey)) > 0
}
