package raftfsm

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var testIdentification = store.Identification{ClusterID: "test", Shard: 0, Shards: 1}

// tester is a test, or a property of one.
type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

// machine is a state machine without raft: the log is the test's.
type machine struct {
	*fsm
	fatals *[]error
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func storeConfig(path string) store.Config {
	return store.Config{
		Path: path, Create: true, Identification: testIdentification,
		Logger: discard(), MapBytes: 1 << 30,
	}
}

func newMachine(t tester, dir string) machine {
	t.Helper()
	return newMachineWithin(t, dir, nil)
}

// newMachineWithin is a machine whose disk has the space.
func newMachineWithin(t tester, dir string, space *store.Space) machine {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cfg := storeConfig(filepath.Join(dir, stateName))
	cfg.Space = space
	fatals := &[]error{}
	cfg.Fatal = func(err error) { *fatals = append(*fatals, err) }
	state, err := store.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	log := raft.NewInmemStore()
	snapshots, err := openSnapshots(filepath.Join(dir, snapshotName), state, log)
	if err != nil {
		t.Fatal(err)
	}
	return machine{fsm: &fsm{store: state, snapshots: snapshots, fatal: cfg.Fatal}, fatals: fatals}
}

func (m machine) close(t tester) {
	t.Helper()
	if err := m.store.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func (m machine) hash(t tester) [32]byte {
	t.Helper()
	hash, _, err := m.store.StateHash()
	if err != nil {
		t.Fatal(err)
	}
	return hash
}

// entryLog returns an entry as raft hands it over.
func entryLog(t tester, index, term uint64, e Entry) *raft.Log {
	t.Helper()
	encoded, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: encoded}
}

func configurationLog(index, term uint64, ids ...string) *raft.Log {
	configuration := raft.Configuration{}
	for _, id := range ids {
		configuration.Servers = append(configuration.Servers, raft.Server{ID: raft.ServerID(id), Address: raft.ServerAddress(id)})
	}
	return &raft.Log{Index: index, Term: term, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(configuration)}
}

// apply applies one entry and wants a result of it.
func (m machine) apply(t tester, log *raft.Log) *Result {
	t.Helper()
	result, ok := m.ApplyBatch([]*raft.Log{log})[0].(*Result)
	if !ok || result == nil {
		t.Fatalf("entry %d: no result", log.Index)
	}
	return result
}

func identity(i int) admission.Identity {
	return admission.Identity{Namespace: "default", Principal: "p", Operation: "POST /x", Key: fmt.Sprintf("key-%d", i)}
}

func attempt(i int) (id admission.AttemptID) {
	binary.BigEndian.PutUint64(id[:], uint64(i)+1)
	return id
}

func reserve(i int) admission.Reserve {
	return admission.Reserve{
		Identity: identity(i), Attempt: attempt(i), Fingerprint: []byte("fingerprint"),
		PendingTTL: time.Minute, Retention: time.Hour, Owner: "owner", WantedUntil: admission.Never,
	}
}

func response(i int) admission.Response {
	stored := fmt.Appendf(nil, "response %d", i)
	return admission.Response{Hash: sha256.Sum256(stored), Bytes: uint32(len(stored)), Stored: stored}
}

func commit(i int, token admission.Token) admission.Commit {
	return admission.Commit{Identity: identity(i), Token: token, Response: response(i)}
}

func commands(c ...admission.Command) []admission.Command { return c }

func TestEntryOfAnotherTermIsStale(t *testing.T) {
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	m.apply(t, entryLog(t, 2, 2, Entry{Term: 2, LeaderStart: true}))
	m.apply(t, entryLog(t, 3, 2, Entry{Term: 2, Elapsed: time.Second, Commands: commands(reserve(0))}))

	for i, c := range []struct {
		name         string
		log, decided uint64
		start        bool
	}{
		{"appended a term later", 3, 2, false},
		{"appended a term later, decided there, and nobody has noted it", 3, 3, false},
		{"decided in a later term than the log's", 2, 3, false},
		{"start appended a term later", 3, 2, true},
	} {
		before := m.hash(t)
		entry := Entry{Term: c.decided, LeaderStart: c.start}
		if !c.start {
			entry.Elapsed, entry.Reclaim, entry.Commands = time.Hour, 10, commands(reserve(1))
		}
		index := uint64(4 + i)
		result := m.apply(t, entryLog(t, index, c.log, entry))
		if !result.Stale || result.Answers != nil || result.Reclaimed != 0 || result.Now != admission.Time(time.Second) {
			t.Errorf("%s: %+v", c.name, result)
		}
		if m.hash(t) != before {
			t.Errorf("%s: it changed the state", c.name)
		}
		if got := m.store.Applied(); got != (store.Position{Index: index, Term: c.log}) {
			t.Errorf("%s: position %v", c.name, got)
		}
	}
}

func TestStartCountsOnceATerm(t *testing.T) {
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	second := admission.Time(time.Second)
	for i, step := range []struct {
		term  uint64
		entry Entry
		now   admission.Time
		noted admission.Time
	}{
		{2, Entry{Term: 2, LeaderStart: true}, 0, 0},
		{2, Entry{Term: 2, Elapsed: 5 * time.Second}, 5 * second, 0},
		{2, Entry{Term: 2, LeaderStart: true}, 5 * second, 0},          // no-op: noted stays
		{2, Entry{Term: 2, Elapsed: 6 * time.Second}, 6 * second, 0},   // not 11
		{2, Entry{Term: 2, Elapsed: 4 * time.Second}, 6 * second, 0},   // never back
		{3, Entry{Term: 3, LeaderStart: true}, 6 * second, 6 * second}, // goes on from there
		{3, Entry{Term: 3, Elapsed: 2 * time.Second}, 8 * second, 6 * second},
		{3, Entry{Term: 3, Elapsed: ElapsedMax}, 6*second + admission.Time(ElapsedMax), 6 * second},
	} {
		result := m.apply(t, entryLog(t, uint64(i+2), step.term, step.entry))
		clock := store.Clock{}
		if err := m.store.View(func(tx *store.Tx) error { clock = tx.Clock(); return nil }); err != nil {
			t.Fatal(err)
		}
		want := store.Clock{Term: step.term, Noted: step.noted, Now: step.now}
		if clock != want || result.Now != step.now || result.Noted != step.noted || result.Stale {
			t.Errorf("step %d: clock %+v, want %+v, result %+v", i, clock, want, result)
		}
	}
}

func TestCommandsAreDecidedInOrderAndThenReclaimed(t *testing.T) {
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	m.apply(t, entryLog(t, 2, 2, Entry{Term: 2, LeaderStart: true}))
	same := reserve(0)
	same.Attempt = attempt(99)
	result := m.apply(t, entryLog(t, 3, 2, Entry{Term: 2, Commands: commands(reserve(0), same, reserve(1), reserve(2))}))
	for i, want := range []admission.Outcome{
		admission.OutcomeGranted, admission.OutcomePending, admission.OutcomeGranted, admission.OutcomeGranted,
	} {
		if result.Answers[i].Outcome != want {
			t.Errorf("command %d: %v, want %v", i, result.Answers[i].Outcome, want)
		}
	}
	// All three lapse; two are written down, after the commit of one of them.
	token := result.Answers[0].Token
	result = m.apply(t, entryLog(t, 4, 2, Entry{Term: 2, Elapsed: 2 * time.Minute, Reclaim: 2, Commands: commands(commit(0, token))}))
	if !result.Answers[0].Late || result.Reclaimed != 2 {
		t.Errorf("late commit and a reclaim of two: %+v", result)
	}
	stats := m.store.Stats()
	if stats.Records[admission.StateLapsed] != 2 || stats.Records[admission.StateCommitted] != 1 {
		t.Errorf("records by state: %v", stats.Records)
	}
}

func TestResponsesAreReadForTheAnsweringTermOnly(t *testing.T) {
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	m.apply(t, entryLog(t, 2, 2, Entry{Term: 2, LeaderStart: true}))
	granted := m.apply(t, entryLog(t, 3, 2, Entry{Term: 2, Commands: commands(reserve(0))})).Answers[0]
	m.apply(t, entryLog(t, 4, 2, Entry{Term: 2, Commands: commands(commit(0, granted.Token))}))
	for i, c := range []struct {
		term uint64
		want string
	}{{0, ""}, {1, ""}, {2, "response 0"}} {
		m.answerTerm.Store(c.term)
		result := m.apply(t, entryLog(t, uint64(5+i), 2, Entry{Term: 2, Commands: commands(reserve(0), reserve(0))}))
		for _, answer := range result.Answers {
			if answer.Outcome != admission.OutcomeCommitted || string(answer.Response.Stored) != c.want {
				t.Errorf("answering term %d: %v with %q", c.term, answer.Outcome, answer.Response.Stored)
			}
		}
	}
}

// TestAnswersNeverMixResponses commits, purges and commits another under the same
// identity and sequence, all in one entry.
func TestAnswersNeverMixResponses(t *testing.T) {
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	m.answerTerm.Store(2)
	m.apply(t, entryLog(t, 2, 2, Entry{Term: 2, LeaderStart: true}))
	first := m.apply(t, entryLog(t, 3, 2, Entry{Term: 2, Commands: commands(reserve(0))})).Answers[0]
	m.apply(t, entryLog(t, 4, 2, Entry{Term: 2, Commands: commands(commit(0, first.Token))}))
	again := reserve(0)
	again.Attempt = attempt(7)
	other := commit(0, admission.Token{Fence: first.Fence + 3, Attempt: again.Attempt})
	other.Response = response(1)
	result := m.apply(t, entryLog(t, 5, 2, Entry{Term: 2, Commands: commands(
		again, admission.Purge{Identity: identity(0), Revision: first.Fence + 2}, again, other, again,
	)}))
	if got := string(result.Answers[0].Response.Stored); got != "response 0" {
		t.Errorf("before the purge: %q", got)
	}
	if got := result.Answers[4]; got.Outcome != admission.OutcomeCommitted || string(got.Response.Stored) != "response 1" {
		t.Errorf("after it: %v with %q; all: %+v", got.Outcome, got.Response.Stored, result.Answers)
	}
}

func TestAnEntryThatCannotBeReadStopsTheMachine(t *testing.T) {
	for name, bad := range map[string]*raft.Log{
		"command":       {Index: 3, Term: 2, Type: raft.LogCommand, Data: []byte{9, 9}},
		"configuration": {Index: 3, Term: 2, Type: raft.LogConfiguration, Data: []byte{0xc1}},
	} {
		m := newMachine(t, t.TempDir())
		m.apply(t, entryLog(t, 2, 2, Entry{Term: 2, LeaderStart: true}))
		before := m.hash(t)
		next := entryLog(t, 4, 2, Entry{Term: 2, Commands: commands(reserve(0))})
		for i, response := range m.ApplyBatch([]*raft.Log{bad, next}) {
			if err, ok := response.(error); !ok || !errors.Is(err, ErrNotApplied) {
				t.Errorf("%s: response %d is %v", name, i, response)
			}
		}
		if len(*m.fatals) != 1 || !strings.Contains((*m.fatals)[0].Error(), "log entry 3 of term 2") {
			t.Errorf("%s: fatal %v", name, *m.fatals)
		}
		if m.hash(t) != before || m.store.Applied().Index != 2 {
			t.Errorf("%s: something was applied", name)
		}
		// Nor may the log be cut, which has what is missing.
		if _, err := m.Snapshot(); !errors.Is(err, ErrNotApplied) {
			t.Errorf("%s: a snapshot: %v", name, err)
		}
		sink := createSink(t, m, 4, 2, 0)
		if err := (snapshot{fsm: m.fsm}).Persist(sink); !errors.Is(err, ErrNotApplied) {
			t.Errorf("%s: persisted: %v", name, err)
		}
		if err := m.Restore(io.NopCloser(strings.NewReader(""))); !errors.Is(err, ErrNotApplied) {
			t.Errorf("%s: restored: %v", name, err)
		}
		m.close(t)
	}
}

func TestAnAppliedEntryIsNotAppliedAgain(t *testing.T) {
	dir := t.TempDir()
	m := newMachine(t, dir)
	logs := []*raft.Log{
		configurationLog(1, 1, "a", "b", "c"),
		entryLog(t, 3, 2, Entry{Term: 2, LeaderStart: true}),
		entryLog(t, 4, 2, Entry{Term: 2, Elapsed: time.Second, Commands: commands(reserve(0), reserve(1))}),
		entryLog(t, 5, 2, Entry{Term: 2, Elapsed: 2 * time.Second, Commands: commands(reserve(0))}),
	}
	m.ApplyBatch(logs)
	want := m.hash(t)
	m.close(t)

	m = newMachine(t, dir)
	defer m.close(t)
	for i, response := range m.ApplyBatch(logs) {
		if result, ok := response.(*Result); i > 0 && (!ok || result != nil) {
			t.Errorf("entry %d: response %v", i, response)
		}
	}
	if m.hash(t) != want {
		t.Error("the state has changed")
	}
}

// TestReplicasAgree applies a drawn log to two machines, one of which is closed and
// replayed at a drawn place.
func TestReplicasAgree(t *testing.T) {
	base := t.TempDir()
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		dirs := [2]string{filepath.Join(base, fmt.Sprint(run, "a")), filepath.Join(base, fmt.Sprint(run, "b"))}
		logs := drawLog(t)
		cut := rapid.IntRange(0, len(logs)).Draw(t, "cut")

		m := newMachine(t, dirs[0])
		m.answerTerm.Store(3)
		answers := m.ApplyBatch(logs)
		want := m.hash(t)
		m.close(t)

		m = newMachine(t, dirs[1])
		m.ApplyBatch(logs[:cut])
		m.close(t)
		m = newMachine(t, dirs[1])
		defer m.close(t)
		for i, response := range m.ApplyBatch(logs) {
			if i < cut {
				continue
			}
			got, _ := response.(*Result)
			first, _ := answers[i].(*Result)
			if !reflect.DeepEqual(withoutResponses(got), withoutResponses(first)) {
				t.Fatalf("entry %d: %+v and %+v", i, got, first)
			}
		}
		if m.hash(t) != want {
			t.Fatal("the replicas have parted")
		}
	})
}

// withoutResponses leaves out what only one of the replicas reads.
func withoutResponses(r *Result) *Result {
	if r == nil {
		return nil
	}
	next := *r
	next.Answers = append([]admission.Answer(nil), r.Answers...)
	for i := range next.Answers {
		next.Answers[i].Response.Stored = nil
	}
	return &next
}

// drawLog draws a log over a few keys and terms in which much happens.
func drawLog(t *rapid.T) []*raft.Log {
	logs := []*raft.Log{configurationLog(1, 1, "a", "b", "c")}
	term, index := uint64(2), uint64(2)
	for range rapid.IntRange(1, 25).Draw(t, "entries") {
		if rapid.IntRange(0, 7).Draw(t, "new term") == 0 {
			term++
			index++ // raft's own entry
		}
		e := Entry{Term: term, WallNanos: int64(index)}
		switch rapid.IntRange(0, 9).Draw(t, "entry") {
		case 0, 1:
			e.LeaderStart = true
		case 2:
			e.Term--
			fallthrough
		default:
			e.Elapsed = time.Duration(rapid.Int64Range(0, int64(3*time.Hour)).Draw(t, "elapsed"))
			e.Reclaim = rapid.IntRange(0, 3).Draw(t, "reclaim")
			for range rapid.IntRange(0, 5).Draw(t, "commands") {
				e.Commands = append(e.Commands, drawLikely(t))
			}
		}
		logs = append(logs, entryLog(t, index, term, e))
		index++
	}
	return logs
}

// drawLikely draws a command that is likely to meet others: few keys, few attempts
// and few fences.
func drawLikely(t *rapid.T) admission.Command {
	i := rapid.IntRange(0, 3).Draw(t, "key")
	who := rapid.IntRange(0, 3).Draw(t, "who")
	token := admission.Token{Fence: uint64(rapid.IntRange(1, 12).Draw(t, "fence")), Attempt: attempt(who)}
	switch rapid.IntRange(0, 7).Draw(t, "command") {
	case 0, 1, 2:
		c := reserve(i)
		c.Attempt = attempt(who)
		c.OnLapse = admission.OnLapse(rapid.IntRange(0, 1).Draw(t, "on_lapse"))
		return c
	case 3:
		c := commit(i, token)
		if rapid.Bool().Draw(t, "long") {
			c.Response.Stored = []byte(strings.Repeat("long ", 500))
			c.Response.Hash = sha256.Sum256(c.Response.Stored)
		}
		return c
	case 4:
		return admission.Release{Identity: identity(i), Token: token, Reason: "reason"}
	case 5:
		return admission.Extend{Identity: identity(i), Token: token, Span: time.Hour}
	case 6:
		return admission.Resolve{Identity: identity(i), Revision: token.Fence, Applied: who > 1, Response: response(who)}
	default:
		return admission.Purge{Identity: identity(i), Revision: token.Fence, Force: who > 0}
	}
}
