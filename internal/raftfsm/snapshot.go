package raftfsm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/store"
)

// incomingPrefix begins the names of files that are being received.
const incomingPrefix = "incoming-"

// stateID names the one snapshot that there is: the state file, as of whenever it
// is opened. Raft takes index and term from what Open returns.
const stateID = "state"

// snapshotStore shows raft the state file as its snapshot.
//
// What List reports is durable, because raft replays the log from there and cuts
// the log before it. What is being received is not listed: raft closes a sink
// before it restores, and a crash in between must find the state and the log as
// they were. It is in the list once it is the state.
type snapshotStore struct {
	store *store.Store
	log   raft.LogStore
	dir   string // where files are received

	mu       sync.Mutex
	incoming map[string]*incoming // received and not yet installed, by id
	received uint64               // counts them, for their names
}

var _ raft.SnapshotStore = (*snapshotStore)(nil)

// openSnapshots makes the directory ready: what an earlier process was receiving
// when it ended is of no use to anybody.
func openSnapshots(dir string, state *store.Store, log raft.LogStore) (*snapshotStore, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), incomingPrefix) {
			if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil {
				return nil, err
			}
		}
	}
	return &snapshotStore{store: state, log: log, dir: dir, incoming: make(map[string]*incoming)}, nil
}

// List implements [raft.SnapshotStore]. An empty state is no snapshot.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	// The configuration is read before the position and again after it, so that
	// both are of one durable state: a newer configuration comes with a newer
	// position.
	for {
		index, encoded := s.store.Configuration()
		durable := s.store.Durable()
		if again, _ := s.store.Configuration(); again != index {
			continue
		}
		if durable.Index == 0 {
			return nil, nil
		}
		meta, err := stateMeta(durable, index, encoded)
		if err != nil {
			return nil, err
		}
		return []*raft.SnapshotMeta{meta}, nil
	}
}

// Open implements [raft.SnapshotStore]: a copy of the state to send, or what was
// received to install.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if id == stateID {
		state, err := s.store.Copy()
		if err != nil {
			return nil, nil, err
		}
		meta, err := stateMeta(state.Position, state.ConfigurationIndex, state.Configuration)
		if err != nil {
			return nil, nil, errors.Join(err, state.Close())
		}
		meta.Size = state.Size
		return meta, state, nil
	}
	s.mu.Lock()
	received, ok := s.incoming[id]
	s.mu.Unlock()
	if !ok {
		return nil, nil, fmt.Errorf("there is no snapshot %q", id)
	}
	meta := received.meta
	return &meta, &incomingReader{incoming: received}, nil
}

// Create implements [raft.SnapshotStore]. The sink is for what raft persists here,
// which writes nothing to it, or for what it receives.
func (s *snapshotStore) Create(
	version raft.SnapshotVersion, index, term uint64,
	configuration raft.Configuration, configurationIndex uint64, _ raft.Transport,
) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received++
	return &sink{store: s, name: fmt.Sprintf("%s%d-%d-%d", incomingPrefix, term, index, s.received), meta: raft.SnapshotMeta{
		Version: version, Index: index, Term: term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}}, nil
}

// install makes a received file the state. The store checks it before it replaces
// anything; what is refused leaves the state as it was.
func (s *snapshotStore) install(received *incoming) error {
	s.mu.Lock()
	delete(s.incoming, received.meta.ID)
	s.mu.Unlock()
	// Whether it has become the state or not: nothing of that name is left behind.
	defer func() { _ = os.Remove(received.path) }()
	if err := s.wanted(&received.meta); err != nil {
		return err
	}
	if err := s.store.Install(received.path); err != nil {
		return err
	}
	want := store.Position{Index: received.meta.Index, Term: received.meta.Term}
	if got := s.store.Durable(); got != want {
		return fmt.Errorf("%w: the leader announced the state at %v and sent it at %v", errInstalled, want, got)
	}
	return nil
}

// wanted returns an error where installing what is being sent would take something
// back. Raft empties the log when it has installed a snapshot, also of what lies
// behind it. So an InstallSnapshot that the network delivers late would take back
// entries that have been acknowledged and counted since, and the state with them.
// (The paper has a follower keep the log behind a snapshot that it matches.)
//
// No leader needs what is refused. It sends a snapshot where its log is cut behind
// the follower's match, and a snapshot reaches at least as far as the cut; what this
// replica has applied, or holds behind a matching entry, ends before. Only an answer
// that was lost makes a leader send again what is installed already, and then there
// is nothing behind it.
func (s *snapshotStore) wanted(meta *raft.SnapshotMeta) error {
	applied := s.store.Applied()
	if applied.Index > meta.Index {
		return fmt.Errorf("%w: the state has applied %d, the snapshot ends at %d", errUnwanted, applied.Index, meta.Index)
	}
	last, err := s.log.LastIndex()
	if err != nil || last <= meta.Index {
		return err
	}
	matches := applied.Index == meta.Index
	if !matches {
		var entry raft.Log
		if err := s.log.GetLog(meta.Index, &entry); err != nil && !errors.Is(err, raft.ErrLogNotFound) {
			return err
		}
		matches = entry.Index == meta.Index && entry.Term == meta.Term
	}
	if matches {
		return fmt.Errorf("%w: the log reaches from it to %d", errUnwanted, last)
	}
	return nil
}

// errUnwanted refuses a snapshot that is older than what is here.
var errUnwanted = errors.New("the snapshot has come too late")

// errInstalled says that the state has been replaced by one that raft does not take
// it for. The replica must not go on.
var errInstalled = errors.New("wrong state installed")

func stateMeta(position store.Position, configurationIndex uint64, encoded []byte) (*raft.SnapshotMeta, error) {
	if configurationIndex == 0 || configurationIndex > position.Index {
		return nil, fmt.Errorf("the state at index %d has the configuration of index %d", position.Index, configurationIndex)
	}
	configuration, err := decodeConfiguration(encoded)
	if err != nil {
		return nil, err
	}
	return &raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: stateID, Index: position.Index, Term: position.Term,
		Configuration: configuration, ConfigurationIndex: configurationIndex,
	}, nil
}

// incoming is a file that has been received as a whole.
type incoming struct {
	meta raft.SnapshotMeta
	path string
}

// incomingReader hands a received file to [fsm.Restore], which wants its name: it
// is renamed, not read.
type incomingReader struct{ *incoming }

// Read implements [io.Reader]. There is no need to read it.
func (*incomingReader) Read([]byte) (int, error) {
	return 0, errors.New("a received state file is installed, not read")
}

// Close implements [io.Closer].
func (*incomingReader) Close() error { return nil }

// sink is where raft writes a snapshot to.
type sink struct {
	store *snapshotStore
	name  string
	meta  raft.SnapshotMeta
	file  *os.File // nil until something is written
	size  int64
	room  int64 // taken for all of it; 0 until it is known how much that is
	done  bool
}

// ID implements [raft.SnapshotSink].
func (s *sink) ID() string {
	if s.file == nil {
		return stateID
	}
	return s.name
}

// Write implements [io.Writer].
func (s *sink) Write(src []byte) (int, error) {
	if s.file == nil {
		if err := s.store.wanted(&s.meta); err != nil {
			return 0, err
		}
		file, err := os.OpenFile(filepath.Join(s.store.dir, s.name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
		if err != nil {
			return 0, err
		}
		s.file = file
	}
	n, err := s.file.Write(src)
	s.size += int64(n)
	return n, errors.Join(err, s.takeRoom())
}

// takeRoom takes room for all that is being received as soon as it has said how much that is,
// and returns an error where there is none: a disk that it would fill ends the node. What
// is longer than it said has no room either.
func (s *sink) takeRoom() error {
	if s.room == 0 {
		room, err := store.CopyBytes(s.file, s.size)
		if err == nil {
			err = s.store.store.Space().Take(room)
		}
		if err != nil {
			return fmt.Errorf("the state that is sent is not received: %w", err)
		}
		s.room = room
	}
	if s.room > 0 && s.size > s.room {
		return fmt.Errorf("the state that is sent is longer than the %d bytes that it said", s.room)
	}
	return nil
}

// end gives back what was taken.
func (s *sink) end() {
	s.done = true
	s.store.store.Space().Give(s.room)
}

// Close implements [raft.SnapshotSink]: what was written is whole.
func (s *sink) Close() error {
	if s.done || s.file == nil {
		s.done = true
		return nil
	}
	defer s.end()
	path := s.file.Name()
	if err := errors.Join(s.file.Sync(), s.file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	s.meta.ID, s.meta.Size = s.name, s.size
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	s.store.incoming[s.name] = &incoming{meta: s.meta, path: path}
	return nil
}

// Cancel implements [raft.SnapshotSink]: what was written is of no use.
func (s *sink) Cancel() error {
	if s.done || s.file == nil {
		s.done = true
		return nil
	}
	defer s.end()
	return errors.Join(s.file.Close(), os.Remove(s.file.Name()))
}

// snapshot is the state as raft is told of it.
type snapshot struct{ fsm *fsm }

// Persist implements [raft.FSMSnapshot]. Raft cuts the log up to the sink's index
// once this returns, so by then the state must be durable up to there: synced, with
// the configuration that holds there.
func (p snapshot) Persist(target raft.SnapshotSink) error {
	local, ok := target.(*sink)
	if !ok {
		return fmt.Errorf("a snapshot sink of type %T", target)
	}
	end := store.Position{Index: local.meta.Index, Term: local.meta.Term}
	if err := p.fsm.advance(end); err != nil {
		return err
	}
	if err := p.fsm.store.Flush(); err != nil {
		return err
	}
	durable := p.fsm.store.Durable()
	configuration, _ := p.fsm.store.Configuration()
	if durable.Index < end.Index || configuration < local.meta.ConfigurationIndex {
		return fmt.Errorf("the state is durable up to %d with the configuration of %d, raft asked for %d and %d",
			durable.Index, configuration, end.Index, local.meta.ConfigurationIndex)
	}
	return target.Close()
}

// Release implements [raft.FSMSnapshot].
func (snapshot) Release() {}
