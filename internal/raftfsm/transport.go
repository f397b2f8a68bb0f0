package raftfsm

import (
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// connectionsKept is how many idle connections to a peer are kept: one each for
// entries, heartbeats and votes.
const connectionsKept = 3

// transport is raft's network transport, with a memory of what the followers have
// acknowledged and six differences:
//
//   - There is no pipelining: a pipeline to a slow follower can wedge for good after
//     one failed append.
//   - A heartbeat takes the fast path past raft's main loop only where it changes
//     nothing but the time of the last contact. Raft runs the fast path beside its
//     main loop, and with a heartbeat that changes the term both would set it, the
//     later one winning: a term could go back after a vote in a higher one.
//   - Entries, or a state, that could not be sent return only when the follower can be
//     reached, see [transport.hold].
//   - Entries are on their way before raft sends them, see [transport.sendAhead].
//   - What no peer says goes no further, see [believe], nor does what contradicts the
//     log, see [logStore.accept].
//   - Close closes the idle connections, too.
type transport struct {
	*raft.NetworkTransport
	acknowledged *acknowledgements
	self         raft.ServerID

	// accept looks at what a leader sends; what it returns an error for is answered
	// with that and goes no further.
	accept func(*raft.AppendEntriesRequest) error

	// raft is nil until it runs, and nothing is delivered until then; see [transport.serve].
	raft    atomic.Pointer[raft.Raft]
	serving chan struct{} // closed once raft is there

	// consumer is what raft's main loop reads: all that comes in, but for the
	// heartbeats on the fast path.
	consumer chan raft.RPC
	closing  chan struct{}
	close    sync.Once
	done     chan struct{}

	held atomic.Int64 // calls that are in hold

	linesMu  sync.Mutex
	lines    map[raft.ServerID]*line
	foreruns sync.WaitGroup
	freshFor time.Duration // how long the answer to something that was sent is taken for a new one
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

func newTransport(cfg *GroupConfig, logger hclog.Logger, accept func(*raft.AppendEntriesRequest) error) *transport {
	t := &transport{
		accept:       accept,
		self:         cfg.Self,
		lines:        make(map[raft.ServerID]*line),
		freshFor:     cfg.Timing.Lease,
		acknowledged: newAcknowledgements(),
		consumer:     make(chan raft.RPC),
		serving:      make(chan struct{}),
		closing:      make(chan struct{}),
		done:         make(chan struct{}),
	}
	network := &raft.NetworkTransportConfig{
		Logger:                  logger,
		Stream:                  cfg.Layer,
		MaxPool:                 connectionsKept,
		MaxRPCsInFlight:         1,
		Timeout:                 cfg.Timing.Call,
		MsgpackUseNewTimeFormat: true,
	}
	if cfg.Addresses != nil {
		network.ServerAddressProvider = addressBook{
			ServerAddressProvider: cfg.Addresses,
			self:                  cfg.Self,
			address:               raft.ServerAddress(cfg.Layer.Addr().String()),
		}
	}
	t.NetworkTransport = raft.NewNetworkTransportWithConfig(network)
	go t.forward()
	return t
}

// addressBook knows the node's own address, which raft asks for with every message.
type addressBook struct {
	raft.ServerAddressProvider
	self    raft.ServerID
	address raft.ServerAddress
}

// ServerAddr implements [raft.ServerAddressProvider].
func (b addressBook) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	if id == b.self {
		return b.address, nil
	}
	return b.ServerAddressProvider.ServerAddr(id)
}

// serve lets what comes in through to raft. It is called once.
func (t *transport) serve(node *raft.Raft) {
	t.raft.Store(node)
	close(t.serving)
}

// runs reports whether there is a raft.
func (t *transport) runs() bool { return t.raft.Load() != nil }

// forward hands what comes in to raft's main loop.
func (t *transport) forward() {
	defer close(t.done)
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if !t.deliver(rpc) {
				return
			}
		case <-t.closing:
			return
		}
	}
}

func (t *transport) deliver(rpc raft.RPC) bool {
	select {
	case <-t.serving:
	case <-t.closing:
		rpc.Respond(nil, raft.ErrTransportShutdown)
		return false
	}
	err := believe(t.raft.Load().CurrentTerm(), rpc.Command)
	if request, ok := rpc.Command.(*raft.AppendEntriesRequest); ok && err == nil {
		err = t.accept(request)
	}
	if err != nil {
		refuse(rpc, err)
		return true
	}
	select {
	case t.consumer <- rpc:
		return true
	case <-t.closing:
		rpc.Respond(nil, raft.ErrTransportShutdown)
		return false
	}
}

// Consumer implements [raft.Transport].
func (t *transport) Consumer() <-chan raft.RPC { return t.consumer }

// SetHeartbeatHandler implements [raft.Transport].
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) {
	t.NetworkTransport.SetHeartbeatHandler(func(rpc raft.RPC) {
		if t.steady(rpc) {
			handle(rpc)
			return
		}
		t.deliver(rpc)
	})
}

// steady reports whether a heartbeat is from the leader of the term that this
// follower is in already.
func (t *transport) steady(rpc raft.RPC) bool {
	heartbeat, ok := rpc.Command.(*raft.AppendEntriesRequest)
	node := t.raft.Load()
	return ok && node != nil && node.State() == raft.Follower && node.CurrentTerm() == heartbeat.Term
}

// AppendEntries implements [raft.Transport].
func (t *transport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) error {
	if isHeartbeat(request) {
		return t.exchange(id, target, time.Now(), request, response)
	}
	l := t.line(id)
	ahead := l.enter(request)
	defer l.leave()
	found, err := t.found(ahead, response)
	if !found {
		t.spare(id, l, request)
		err = t.exchange(id, target, time.Now(), request, response)
	}
	if err != nil {
		t.hold(id, request.Term)
	}
	return err
}

// exchange sends a request and notes the answer. sent is before anything is sent: the
// follower answers after that moment.
func (t *transport) exchange(
	id raft.ServerID, target raft.ServerAddress, sent time.Time, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) error {
	if err := t.NetworkTransport.AppendEntries(id, target, request, response); err != nil {
		return err
	}
	if len(request.Entries) > 0 {
		t.line(id).answered(time.Since(sent))
	}
	t.acknowledged.appended(id, sent, request, response)
	return nil
}

// isHeartbeat tells a heartbeat as raft and its network transport do: everything else
// comes from the routine that replicates, of which there is one a follower.
func isHeartbeat(request *raft.AppendEntriesRequest) bool {
	return request.PrevLogEntry == 0 && request.PrevLogTerm == 0 && len(request.Entries) == 0 && request.LeaderCommitIndex == 0
}

// holdLook is how often hold looks whether there is still something to wait for.
const holdLook = 100 * time.Millisecond

// hold keeps the replicating routine until the follower answers something: heartbeats
// go on and find it, at the latest half a Heartbeat after it is back. Raft itself would
// wait twice as long after each failure, up to 10 s, and learn only then that a follower
// is there again, which by its heartbeats counts as a member in good health. Whoever
// restarts one node after the other would take the majority away.
//
// It ends with the leadership, with the follower's membership and with the transport. A
// transfer of leadership to a follower that is held for would wait for its routine;
// [Group.TransferLeadership] asks only for one that has just answered.
func (t *transport) hold(id raft.ServerID, term uint64) {
	t.held.Add(1)
	defer t.held.Add(-1)
	answered := t.acknowledged.next(id)
	look := time.NewTicker(holdLook)
	defer look.Stop()
	for t.replicates(id, term) {
		select {
		case <-answered:
			return
		case <-t.closing:
			return
		case <-look.C:
		}
	}
}

// replicates reports whether this replica still leads that term and has that follower.
func (t *transport) replicates(id raft.ServerID, term uint64) bool {
	node := t.raft.Load()
	if node == nil || node.State() != raft.Leader || node.CurrentTerm() != term {
		return false
	}
	_, follows := address(node.GetConfiguration().Configuration(), id)
	return follows
}

// AppendEntriesPipeline implements [raft.Transport].
func (t *transport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// InstallSnapshot implements [raft.Transport].
func (t *transport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress, request *raft.InstallSnapshotRequest, response *raft.InstallSnapshotResponse, data io.Reader,
) error {
	if err := t.NetworkTransport.InstallSnapshot(id, target, request, response, data); err != nil {
		t.hold(id, request.Term) // raft makes a copy of the state before it tries again
		return err
	}
	t.acknowledged.installed(id, request, response)
	return nil
}

// Close implements [raft.WithClose]. The stream layer closes the connections that
// are in use.
func (t *transport) Close() error {
	t.close.Do(func() {
		t.linesMu.Lock() // nothing is sent ahead that is not waited for below
		close(t.closing)
		t.linesMu.Unlock()
		_ = t.NetworkTransport.Close()
		t.CloseStreams()
		t.foreruns.Wait()
		<-t.done
	})
	return nil
}
