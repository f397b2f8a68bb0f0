package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/peer"
)

// Config is what a [Membership] needs. Start from [Default].
type Config struct {
	File *File
	// PeerAddress and ClientAddress are the host:port that others dial. The first is
	// empty for a node that nobody can reach.
	PeerAddress, ClientAddress string
	// Peers is the list of peers, this node included; empty for a cluster of one.
	Peers  []peer.Listed
	Logger *slog.Logger
	// StorageFull reports whether this node is short of disk space, which it tells the
	// others. Nil: never.
	StorageFull func() bool

	AskEvery      time.Duration // between two rounds of questions while there is no cluster
	SayEvery      time.Duration // between two log lines about what is waited for
	JoinWait      time.Duration // how long an excluded node waits to be added
	ExchangeEvery time.Duration // between two rounds that tell addresses, in a cluster
}

// Default returns the intervals: 1 s, 5 s, 30 s and 5 s.
func Default() Config {
	return Config{AskEvery: time.Second, SayEvery: 5 * time.Second, JoinWait: 30 * time.Second, ExchangeEvery: 5 * time.Second}
}

// Asker is how others are asked; a *peer.Port is one.
type Asker interface {
	Hello(ctx context.Context, hostPort string, say peer.HelloMessage) (peer.HelloMessage, error)
}

// Membership is what a node knows of its cluster. Its methods may be called from any
// goroutine, except where they say otherwise.
type Membership struct {
	cfg       Config
	directory *Directory
	wake      chan struct{} // somebody has a cluster: ask again at once

	mu        sync.Mutex
	waiting   string    // what is waited for, for people; empty: nothing
	removed   bool      // the cluster goes on without this node
	goneSince time.Time // since when all that answered have said so; zero: they do not
}

// ErrExcluded reports that there is a cluster, and that this node was not made a
// member of it in time.
var ErrExcluded = errors.New("not a member")

// New returns the membership of a node.
func New(cfg Config) *Membership {
	state := cfg.File.State()
	self := peer.Member{Name: state.NodeID, Incarnation: state.Incarnation, PeerAddress: cfg.PeerAddress, ClientAddress: cfg.ClientAddress}
	m := &Membership{cfg: cfg, directory: newDirectory(self, cfg.Peers), wake: make(chan struct{}, 1)}
	if state.ClusterID != "" {
		m.directory.set(state.Members)
	}
	return m
}

// CheckPeers reports an error where a list of peers does not fit the cluster that the
// node already belongs to. An empty list always fits.
func (f *File) CheckPeers(peers []peer.Listed) error {
	state := f.State()
	if state.ClusterID == "" || len(peers) == 0 {
		return nil
	}
	var listed, members []string
	for _, p := range peers {
		listed = append(listed, p.Name)
	}
	for _, member := range state.Members {
		members = append(members, member.Name)
	}
	slices.Sort(listed)
	slices.Sort(members)
	members = slices.Compact(members) // a member that is being replaced is there twice
	if slices.Equal(listed, members) {
		return nil
	}
	return fmt.Errorf("the peers are %s, but %s belongs to cluster %s of %s; "+
		"a list of peers makes a cluster, and does not change one",
		strings.Join(listed, ", "), f.path, state.ClusterID, strings.Join(members, ", "))
}

// Directory returns the directory of members.
func (m *Membership) Directory() *Directory { return m.directory }

// Waiting says why the node does not belong to a cluster yet, for people; "" once it
// does.
func (m *Membership) Waiting() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.waiting
}

// Removed reports whether the cluster goes on without this node.
func (m *Membership) Removed() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.removed
}

func (m *Membership) setWaiting(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = text
}

// Message is what this node says of itself.
func (m *Membership) Message() peer.HelloMessage {
	state := m.cfg.File.State()
	say := peer.HelloMessage{
		Self:      m.directory.self,
		ClusterID: state.ClusterID,
		Shards:    state.Shards,
		Peers:     m.cfg.Peers,
	}
	if state.ClusterID != "" {
		say.Members = m.directory.Members()
	}
	if m.cfg.StorageFull != nil {
		say.StorageFull = m.cfg.StorageFull()
	}
	return say
}

// Hello answers another node's question, and notes where that node is. It is for
// peer.Config.
func (m *Membership) Hello(_ context.Context, asked peer.HelloMessage) (peer.HelloMessage, error) {
	answer := m.Message()
	switch {
	case answer.ClusterID != "" && asked.ClusterID == answer.ClusterID:
		m.heard(asked.Self)
	case answer.ClusterID == "" && asked.ClusterID != "":
		// Not taken at its word: Find asks the listed peers where they are listed.
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
	return answer, nil
}

func (m *Membership) heard(member peer.Member) {
	if m.directory.hear(member, time.Now()) {
		m.cfg.Logger.Info("heard from a member", "node", member.Name, "incarnation", member.Incarnation,
			"peer_address", member.PeerAddress, "client_address", member.ClientAddress)
	}
}

// Find returns once the node belongs to a cluster and that is on disk: at once where it
// already does, otherwise by the protocol in the package comment. An error that is
// [ErrExcluded] says what an operator can do.
func (m *Membership) Find(ctx context.Context, ask Asker) (State, error) {
	if state := m.cfg.File.State(); state.ClusterID != "" {
		return state, nil
	}
	var excludedSince, said time.Time
	for {
		self := m.Message()
		if len(self.Peers) == 0 {
			return m.begin(random(), []peer.Member{self.Self})
		}
		v := judge(&self, m.askAll(ctx, ask, &self))
		if ctx.Err() != nil {
			return State{}, context.Cause(ctx)
		}
		now := time.Now()
		quiet := !said.IsZero() && now.Sub(said) < m.cfg.SayEvery
		switch {
		case v.join != nil:
			return m.join(v.join)
		case v.found != nil:
			state, err := m.begin(random(), v.found)
			if err == nil {
				m.tell(ctx, ask)
			}
			return state, err
		case v.excluded != "":
			m.setWaiting(v.excluded)
			if excludedSince.IsZero() {
				excludedSince, quiet = now, false
			}
			if now.Sub(excludedSince) >= m.cfg.JoinWait {
				return State{}, fmt.Errorf("%w: %s", ErrExcluded, v.excluded)
			}
			if !quiet {
				said = now
				m.cfg.Logger.Error(v.excluded, "waits_for_this_another", (m.cfg.JoinWait - now.Sub(excludedSince)).String())
			}
		default:
			excludedSince = time.Time{}
			missing := strings.Join(v.waitFor, "; ")
			m.setWaiting("waiting for " + missing)
			if !quiet {
				said = now
				m.cfg.Logger.Info("there is no cluster yet; waiting for " + missing)
			}
		}
		select {
		case <-ctx.Done():
			return State{}, context.Cause(ctx)
		case <-m.wake:
			// Anybody can say so: let it not make this node ask without rest.
			select {
			case <-ctx.Done():
			case <-time.After(m.cfg.AskEvery / 20):
			}
		case <-time.After(m.cfg.AskEvery):
		}
	}
}

// tell lets the others know that there is a cluster, so that they need not wait until
// they ask again. Whoever does not hear of it now does so then.
func (m *Membership) tell(ctx context.Context, ask Asker) {
	ctx, cancel := context.WithTimeout(ctx, m.cfg.AskEvery)
	defer cancel()
	m.ExchangeOnce(ctx, ask)
}

// begin makes a cluster, with this node as the one to begin its logs.
func (m *Membership) begin(cluster string, members []peer.Member) (State, error) {
	return m.belong("founded a cluster", func(s *State) { s.ClusterID, s.Members, s.Founder = cluster, members, true })
}

// join takes over the cluster that a peer belongs to and that counts this node in.
func (m *Membership) join(from *peer.HelloMessage) (State, error) {
	return m.belong("joined a cluster", func(s *State) { s.ClusterID, s.Members = from.ClusterID, from.Members })
}

func (m *Membership) belong(how string, change func(*State)) (State, error) {
	if err := m.cfg.File.update(change); err != nil {
		return State{}, err
	}
	state := m.cfg.File.State()
	m.directory.set(state.Members)
	m.setWaiting("")
	names := make([]string, len(state.Members))
	for i := range state.Members {
		names[i] = string(state.Members[i].ID())
	}
	m.cfg.Logger.Info(how, "cluster", state.ClusterID, "members", names, "shards", state.Shards)
	return state, nil
}

// askAll asks every other listed peer at once.
func (m *Membership) askAll(ctx context.Context, ask Asker, say *peer.HelloMessage) []answer {
	var answers []answer
	for _, listed := range say.Peers {
		if listed.Name != say.Self.Name {
			answers = append(answers, answer{peer: listed})
		}
	}
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() {
			answers[i].message, answers[i].err = ask.Hello(ctx, answers[i].peer.Address, *say)
		})
	}
	asking.Wait()
	return answers
}

// Observe takes over who the members are from the Raft configurations of the shards.
// This node stays in the list even where they leave it out: it is for the others to
// say that it is gone. It waits for no disk; [Membership.Exchange] notes what is known.
func (m *Membership) Observe(servers map[raft.ServerID]raft.ServerAddress) {
	if len(servers) == 0 {
		return
	}
	members := make([]peer.Member, 0, len(servers)+1)
	for id, address := range servers {
		name, incarnation, err := peer.SplitServerID(id)
		if err != nil {
			m.cfg.Logger.Error("a Raft configuration names a server that can be none", "error", err)
			continue
		}
		members = append(members, peer.Member{Name: name, Incarnation: incarnation, PeerAddress: peer.HostPort(address)})
	}
	if _, ok := servers[m.directory.self.ID()]; !ok {
		members = append(members, m.directory.self)
	}
	// A node leaves the cluster only by being replaced. Between its two incarnations, and
	// for as long as a replacement is stuck there, the lost one stands for it.
	for _, known := range m.directory.Members() {
		if !slices.ContainsFunc(members, func(other peer.Member) bool { return other.Name == known.Name }) {
			members = append(members, known)
		}
	}
	if m.directory.set(members) {
		m.cfg.Logger.Info("the members have changed", "members", m.directory.Members())
	}
}

// note writes down who the members are, where the file has others.
func (m *Membership) note() {
	members := m.directory.Members()
	same := func(a, b peer.Member) bool { return a.ID() == b.ID() }
	if slices.EqualFunc(m.cfg.File.State().Members, members, same) {
		return
	}
	if err := m.cfg.File.update(func(s *State) { s.Members = members }); err != nil {
		m.cfg.Logger.Error("could not note the members", "error", err)
	}
}
