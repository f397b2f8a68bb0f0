package raftfsm

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/store"
)

// Result is what came of an entry. It is the response of the future that
// [Group.Propose] returned, which may also be
//
//   - a nil *Result: the state had the entry already, and what was answered is not
//     known (a replay; it does not happen to an entry that a leader waits for);
//   - an error: the entry could not be applied. The node is about to stop, and the
//     outcome is unknown.
type Result struct {
	// Stale says that the entry was refused as a whole: its Raft term, the term it
	// was proposed in and the noted term are not all the same. Nothing happened.
	Stale bool
	// Noted and Now are the clock's noted value and the clock after the entry.
	Noted, Now admission.Time
	// Answers has one answer for each command. A committed one carries the stored
	// response if the entry's term is the one given to [Group.AnswerTerm] and the
	// responses before it in the entry come to at most [AnswerBytesMax]; else its
	// Response.Stored is nil, and whoever needs it reads it from the store.
	Answers []admission.Answer
	// Reclaimed counts the due records that were written down.
	Reclaimed int
}

// AnswerBytesMax bounds the stored responses that the answers to one entry carry.
const AnswerBytesMax = 32 << 20

// fsm applies the log to the store. Raft calls it from one goroutine, apart from
// [snapshot.Persist], which comes from another.
//
// It implements [raft.BatchingFSM], because that is how an FSM sees configuration
// entries with their term: the position of the state must be a true (index, term)
// pair, for it is what this replica shows in elections once the log before it is
// gone.
type fsm struct {
	store     *store.Store
	snapshots *snapshotStore
	fatal     func(error)

	checks    checks
	reclaimed atomic.Uint64 // for Numbers

	// answerTerm is the term whose entries somebody waits for here.
	answerTerm atomic.Uint64

	// mu serializes updates of the store, which come in log order, with the move
	// that a snapshot makes past entries that raft keeps to itself.
	mu sync.Mutex
	// failed is set once an entry could not be applied. None is applied after it.
	failed error
}

var (
	_ raft.FSM         = (*fsm)(nil)
	_ raft.BatchingFSM = (*fsm)(nil)
)

// ApplyBatch implements [raft.BatchingFSM].
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	for i, log := range logs {
		responses[i] = f.Apply(log)
	}
	return responses
}

// Apply implements [raft.FSM]. It returns a *Result, an error or, for an entry that
// is no command, nil.
func (f *fsm) Apply(log *raft.Log) any {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	var result *Result
	var err error
	switch log.Type {
	case raft.LogCommand:
		result, err = f.command(log)
	case raft.LogConfiguration:
		err = f.configuration(log)
	}
	if err != nil {
		return f.fail(fmt.Errorf("log entry %d of term %d: %w", log.Index, log.Term, err))
	}
	if digest, at := f.store.Digest(); at.Index == log.Index {
		f.checks.note(log.Index, digest)
	}
	if log.Type != raft.LogCommand {
		return nil
	}
	return result
}

// fail stops the state machine for good: an entry that was left out would part this
// replica from the others. f.mu is held.
func (f *fsm) fail(err error) error {
	f.failed = fmt.Errorf("%w: %w", ErrNotApplied, err)
	f.fatal(f.failed)
	return f.failed
}

// ErrNotApplied is what every entry is answered with after one could not be applied.
var ErrNotApplied = errors.New("the state machine has stopped")

func (f *fsm) configuration(log *raft.Log) error {
	if _, err := decodeConfiguration(log.Data); err != nil {
		return err
	}
	return f.store.SetConfiguration(position(log), log.Data)
}

func (f *fsm) command(log *raft.Log) (*Result, error) {
	entry, err := DecodeEntry(log.Data)
	if err != nil {
		return nil, err
	}
	if err := f.checks.compare(entry.Check); err != nil {
		return nil, err
	}
	var result *Result
	_, err = f.store.Update(position(log), func(tx *store.Tx) error {
		result = &Result{}
		if entry.LeaderStart {
			start(tx, log.Term, entry, result)
			return nil
		}
		b := batch{tx: tx, entry: entry, result: result}
		b.answering = log.Term == f.answerTerm.Load()
		return b.apply(log.Term)
	})
	if err != nil {
		return nil, err
	}
	if result != nil {
		f.reclaimed.Add(uint64(result.Reclaimed))
	}
	return result, nil
}

// start notes the term and the clock's value, once a term. Were a second one to note
// again, the time that the first has seen elapse would count twice.
func start(tx *store.Tx, term uint64, entry *Entry, result *Result) {
	clock := tx.Clock()
	switch {
	case entry.Term != term:
		result.Stale = true
	case clock.Term != term:
		clock = store.Clock{Term: term, Noted: clock.Now, Now: clock.Now}
		tx.SetClock(clock)
	}
	result.Noted, result.Now = clock.Noted, clock.Now
}

// advance moves the position to one that raft has applied without telling the FSM:
// a snapshot may end in a barrier. Nothing that is told can lie between, since raft
// has told everything up to the position.
func (f *fsm) advance(to store.Position) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	_, err := f.store.Update(to, func(*store.Tx) error { return nil })
	return err
}

// Snapshot implements [raft.FSM]. The state is its own snapshot: there is nothing
// to capture.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return nil, f.failed
	}
	return snapshot{fsm: f}, nil
}

// Restore implements [raft.FSM]. It installs a state file that raft has received
// into the snapshots directory; it knows no other snapshot.
func (f *fsm) Restore(source io.ReadCloser) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failed != nil {
		return f.failed
	}
	for {
		wrapper, ok := source.(raft.ReadCloserWrapper)
		if !ok {
			break
		}
		source = wrapper.WrappedReadCloser()
	}
	received, ok := source.(*incomingReader)
	if !ok {
		return fmt.Errorf("a snapshot of type %T was not received here", source)
	}
	err := f.snapshots.install(received.incoming)
	if err == nil {
		f.checks.forget()
	}
	if errors.Is(err, errInstalled) {
		return f.fail(err)
	}
	return err
}

func position(log *raft.Log) store.Position {
	return store.Position{Index: log.Index, Term: log.Term}
}
