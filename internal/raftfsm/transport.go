package raftfsm

import (
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// connectionsKept is how many idle connections to a peer are kept: one each for
// entries, heartbeats and votes.
const connectionsKept = 3

// ConnectionsMax is how many connections a replica may have to another one: those that are
// kept, one for entries that are sent ahead, and as many that it has given up and of which the other
// has not heard yet.
const ConnectionsMax = 2 * (connectionsKept + 1)

// transport is raft's network transport with something of ours at either end. What others
// send comes through [inbound] on its way to raft, what raft sends goes through [outbound]
// on its way to the network. Neither knows of the other: what they have in common is raft,
// once it runs, and that they are closed together.
//
// There are six differences. On the way in:
//
//   - What no peer says goes no further, see [believe], nor does what contradicts the
//     log, see [logStore.accept].
//   - A heartbeat takes the fast path past raft's main loop only where it changes
//     nothing but the time of the last contact, see [inbound.steady] and [terms].
//
// On the way out:
//
//   - There is no pipelining: a pipeline to a slow follower can wedge for good after
//     one failed append.
//   - Entries, or a state, that could not be sent return only when the follower can be
//     reached, see [outbound.hold].
//   - Entries are on their way before raft sends them, see [outbound.sendAhead].
//
// And Close closes the idle connections, too.
type transport struct {
	*raft.NetworkTransport // what neither end has to do with

	in      inbound
	out     outbound
	runs    running
	closing chan struct{}
	close   sync.Once
}

var (
	_ raft.Transport   = (*transport)(nil)
	_ raft.WithPreVote = (*transport)(nil)
	_ raft.WithClose   = (*transport)(nil)
)

func newTransport(cfg *GroupConfig, logger hclog.Logger, accept func(*raft.AppendEntriesRequest) error, terms *terms) *transport {
	config := &raft.NetworkTransportConfig{
		Logger:                  logger,
		Stream:                  cfg.Layer,
		MaxPool:                 connectionsKept,
		MaxRPCsInFlight:         1,
		Timeout:                 cfg.Timing.Call,
		MsgpackUseNewTimeFormat: true,
	}
	if cfg.Addresses != nil {
		config.ServerAddressProvider = addressBook{
			ServerAddressProvider: cfg.Addresses,
			self:                  cfg.Self,
			address:               raft.ServerAddress(cfg.Layer.Addr().String()),
		}
	}
	network := raft.NewNetworkTransportWithConfig(config)
	t := &transport{
		NetworkTransport: network,
		runs:             running{began: make(chan struct{})},
		closing:          make(chan struct{}),
	}
	t.in = inbound{
		network: network, runs: &t.runs, closing: t.closing,
		accept: accept, terms: terms, consumer: make(chan raft.RPC), done: make(chan struct{}),
	}
	t.out = outbound{
		network: network, runs: &t.runs, closing: t.closing,
		self: cfg.Self, acknowledged: newAcknowledgements(), freshFor: cfg.Timing.Lease, lines: make(map[raft.ServerID]*line),
	}
	go t.in.forward()
	return t
}

// running is the raft that a transport is for. It is made with the transport, so there is
// none at first.
type running struct {
	node  atomic.Pointer[raft.Raft]
	began chan struct{} // closed once there is one
}

// raft returns it, or nil.
func (r *running) raft() *raft.Raft { return r.node.Load() }

// begin is called once.
func (r *running) begin(node *raft.Raft) {
	r.node.Store(node)
	close(r.began)
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

// Consumer implements [raft.Transport].
func (t *transport) Consumer() <-chan raft.RPC { return t.in.consumer }

// SetHeartbeatHandler implements [raft.Transport].
func (t *transport) SetHeartbeatHandler(handle func(raft.RPC)) { t.in.setHeartbeatHandler(handle) }

// AppendEntries implements [raft.Transport].
func (t *transport) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, request *raft.AppendEntriesRequest, response *raft.AppendEntriesResponse,
) error {
	return t.out.appendEntries(id, target, request, response)
}

// AppendEntriesPipeline implements [raft.Transport].
func (t *transport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// InstallSnapshot implements [raft.Transport].
func (t *transport) InstallSnapshot(
	id raft.ServerID, target raft.ServerAddress, request *raft.InstallSnapshotRequest, response *raft.InstallSnapshotResponse, data io.Reader,
) error {
	return t.out.installSnapshot(id, target, request, response, data)
}

// RequestVote implements [raft.Transport].
func (t *transport) RequestVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestVoteRequest, response *raft.RequestVoteResponse,
) error {
	return t.out.requestVote(id, target, request, response)
}

// RequestPreVote implements [raft.WithPreVote].
func (t *transport) RequestPreVote(
	id raft.ServerID, target raft.ServerAddress, request *raft.RequestPreVoteRequest, response *raft.RequestPreVoteResponse,
) error {
	return t.out.requestPreVote(id, target, request, response)
}

// Close implements [raft.WithClose]. The stream layer closes the connections that
// are in use.
func (t *transport) Close() error {
	t.close.Do(func() {
		t.out.end()
		close(t.closing)
		_ = t.NetworkTransport.Close()
		t.CloseStreams()
		t.out.foreruns.Wait()
		<-t.in.done
	})
	return nil
}
