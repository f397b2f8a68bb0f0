package raftfsm

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/store"
)

func createSink(t tester, m machine, index, term, configurationIndex uint64) raft.SnapshotSink {
	t.Helper()
	sink, err := m.snapshots.Create(1, index, term, raft.Configuration{}, configurationIndex, nil)
	if err != nil {
		t.Fatal(err)
	}
	return sink
}

// populated returns a machine that has applied entries 1 to 3 of terms 1 and 2.
func populated(t *testing.T) machine {
	m := newMachine(t, t.TempDir())
	t.Cleanup(func() { m.close(t) })
	m.ApplyBatch([]*raft.Log{
		configurationLog(1, 1, "a", "b", "c"),
		entryLog(t, 3, 2, Entry{Term: 2, LeaderStart: true}),
		entryLog(t, 4, 2, Entry{Term: 2, Elapsed: time.Second, Commands: commands(reserve(0), reserve(1))}),
	})
	return m
}

func list(t *testing.T, m machine) *raft.SnapshotMeta {
	t.Helper()
	metas, err := m.snapshots.List()
	if err != nil {
		t.Fatal(err)
	}
	switch len(metas) {
	case 0:
		return nil
	case 1:
		return metas[0]
	default:
		t.Fatalf("%d snapshots", len(metas))
		return nil
	}
}

func TestPersistMakesTheStateDurable(t *testing.T) {
	m := populated(t)
	if m := newMachine(t, t.TempDir()); true {
		defer m.close(t)
		if meta := list(t, m); meta != nil {
			t.Errorf("an empty state is listed: %+v", meta)
		}
	}
	snap, err := m.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	// Raft has applied a barrier at 5, of which the state has not heard.
	if err := snap.Persist(createSink(t, m, 5, 2, 1)); err != nil {
		t.Fatal(err)
	}
	snap.Release()
	meta := list(t, m)
	if meta == nil || meta.Index != 5 || meta.Term != 2 || meta.ConfigurationIndex != 1 || len(meta.Configuration.Servers) != 3 {
		t.Errorf("listed: %+v", meta)
	}
	if got := m.store.Durable(); got != (store.Position{Index: 5, Term: 2}) {
		t.Errorf("durable at %v", got)
	}
	// A configuration that raft knows and the state does not is refused.
	if err := snap.Persist(createSink(t, m, 5, 2, 2)); err == nil {
		t.Error("persisted without the configuration of entry 2")
	}
}

// send copies the state of one machine into the snapshots of another, as raft does.
func send(t *testing.T, from, to machine) (*raft.SnapshotMeta, raft.SnapshotSink, error) {
	t.Helper()
	meta, source, err := from.snapshots.Open(stateID)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	sink, err := to.snapshots.Create(1, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(sink, source)
	if err != nil {
		if cancelled := sink.Cancel(); cancelled != nil {
			t.Error(cancelled)
		}
		return meta, nil, err
	}
	if n != meta.Size {
		t.Fatalf("%d bytes, announced as %d", n, meta.Size)
	}
	return meta, sink, nil
}

// restore does what raft's FSM goroutine does with a received snapshot.
func restore(t *testing.T, m machine, id string) error {
	t.Helper()
	_, source, err := m.snapshots.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	return m.Restore(source)
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

func TestAReceivedStateIsListedOnceItIsInstalled(t *testing.T) {
	from, to := populated(t), newMachine(t, t.TempDir())
	defer to.close(t)
	meta, sink, err := send(t, from, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	if got := list(t, to); got != nil {
		t.Errorf("listed before it is the state: %+v", got)
	}
	if err := restore(t, to, sink.ID()); err != nil {
		t.Fatal(err)
	}
	got := list(t, to)
	if got == nil || got.Index != meta.Index || got.Term != meta.Term || to.store.InstalledAt() != meta.Index {
		t.Errorf("listed %+v, installed at %d, want %+v", got, to.store.InstalledAt(), meta)
	}
	if from.hash(t) != to.hash(t) {
		t.Error("the states differ")
	}
	if left := files(t, to.snapshots.dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, _, err := to.snapshots.Open(sink.ID()); err == nil {
		t.Error("it can be installed twice")
	}
}

func TestADamagedSnapshotLeavesTheStateAlone(t *testing.T) {
	from, to := populated(t), newMachine(t, t.TempDir())
	defer to.close(t)
	_, sink, err := send(t, from, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(to.snapshots.dir, sink.ID())
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := restore(t, to, sink.ID()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("restored: %v", err)
	}
	if list(t, to) != nil || len(*to.fatals) > 0 {
		t.Errorf("listed %v, fatal %v", list(t, to), *to.fatals)
	}
	if left := files(t, to.snapshots.dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestASnapshotThatWasAnnouncedAsAnotherIsFatal(t *testing.T) {
	from, to := populated(t), newMachine(t, t.TempDir())
	defer to.close(t)
	meta, source, err := from.snapshots.Open(stateID)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	sink := createSink(t, to, meta.Index+1, meta.Term, 1)
	if _, err := io.Copy(sink, source); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	if err := restore(t, to, sink.ID()); err == nil || len(*to.fatals) != 1 {
		t.Errorf("restored: %v, fatal: %v", err, *to.fatals)
	}
}

// TestALateSnapshotIsRefused covers what would take back acknowledged entries.
func TestALateSnapshotIsRefused(t *testing.T) {
	logged := func(last, term uint64) *raft.InmemStore {
		log := raft.NewInmemStore()
		for index := uint64(3); index <= last; index++ {
			if err := log.StoreLog(&raft.Log{Index: index, Term: term}); err != nil {
				t.Fatal(err)
			}
		}
		return log
	}
	for _, c := range []struct {
		name    string
		applied uint64
		log     *raft.InmemStore
		wanted  bool
	}{
		{"an empty replica", 0, raft.NewInmemStore(), true},
		{"a log that ends before", 3, logged(3, 2), true},
		{"a log that ends with it", 3, logged(4, 2), true},
		{"a log that parted before", 3, logged(9, 1), true},
		{"installed already, and the answer was lost", 4, raft.NewInmemStore(), true},
		{"installed already, and entries came after", 4, func() *raft.InmemStore {
			log := raft.NewInmemStore()
			_ = log.StoreLog(&raft.Log{Index: 5, Term: 2})
			return log
		}(), false},
		{"the log reaches beyond", 3, logged(5, 2), false},
		{"applied beyond", 5, logged(5, 2), false},
	} {
		from, to := populated(t), newMachine(t, t.TempDir())
		to.snapshots.log = c.log
		if c.applied > 0 {
			if err := to.advance(store.Position{Index: c.applied, Term: 2}); err != nil {
				t.Fatal(err)
			}
		}
		_, sink, err := send(t, from, to)
		if (err == nil) != c.wanted {
			t.Errorf("%s: received: %v", c.name, err)
		}
		if err == nil {
			if err := sink.Close(); err != nil {
				t.Fatal(err)
			}
			if err := restore(t, to, sink.ID()); err != nil {
				t.Errorf("%s: restored: %v", c.name, err)
			}
		} else if left := files(t, to.snapshots.dir); len(left) > 0 {
			t.Errorf("%s: left behind: %v", c.name, left)
		}
		to.close(t)
	}
}

// A state is received where there is room for all of it, and refused as soon as its first
// pages say that there is not.
func TestAStateForWhichThereIsNoRoomIsRefused(t *testing.T) {
	from := populated(t)
	meta, source, err := from.snapshots.Open(stateID)
	must(t, err)
	content, err := io.ReadAll(source)
	must(t, errors.Join(err, source.Close()))
	const floor = 1 << 20
	longer := append(slices.Clone(content), 0)
	for _, test := range []struct {
		name         string
		content      []byte
		free, others int64 // others is what is being written beside it
		want         string
	}{
		{"a byte too few", content, floor + meta.Size - 1, 0, "1 bytes more are needed"},
		{"a byte too few beside others", content, floor + meta.Size + 9, 10, "1 bytes more are needed"},
		{"longer than it says", longer, 1 << 40, 0, "longer"},
		{"zeros", make([]byte, 1<<26), 1 << 40, 0, "does not begin as one"},
		{"just enough", content, floor + meta.Size, 0, ""},
		{"just enough beside others", content, floor + meta.Size + 10, 10, ""},
	} {
		for _, chunk := range []int{1 << 10, 5000, 32 << 10, len(content)} {
			free := int64(1 << 40)
			space := store.NewSpace(func() (int64, error) { return free, nil }, floor)
			to := newMachineWithin(t, t.TempDir(), space)
			must(t, space.Take(test.others))
			free = test.free
			sink := createSink(t, to, meta.Index, meta.Term, meta.ConfigurationIndex)
			written := 0
			for piece := range slices.Chunk(test.content, chunk) {
				var n int
				n, err = sink.Write(piece)
				if written += n; err != nil {
					break
				}
			}
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%s, by %d bytes: error %v after %d, want %q", test.name, chunk, err, written, test.want)
			}
			if strings.Contains(test.want, "needed") && written > 2*os.Getpagesize()+chunk {
				t.Errorf("%s, by %d bytes: refused after %d", test.name, chunk, written)
			}
			if err == nil {
				must(t, sink.Close())
				must(t, restore(t, to, sink.ID()))
			} else {
				must(t, sink.Cancel())
			}
			if left := files(t, to.snapshots.dir); len(left) > 0 {
				t.Errorf("%s: left behind: %v", test.name, left)
			}
			// What was taken for it has been given back.
			must(t, space.Take(free-floor-test.others))
			to.close(t)
		}
	}
}

func TestAFileThatWasBeingReceivedIsRemovedAtTheNextStart(t *testing.T) {
	dir := t.TempDir()
	m := newMachine(t, dir)
	sink := createSink(t, m, 9, 3, 1)
	if _, err := sink.Write([]byte("half of")); err != nil {
		t.Fatal(err)
	}
	m.close(t)
	m = newMachine(t, dir)
	defer m.close(t)
	if left := files(t, m.snapshots.dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := sink.Cancel(); err == nil {
		t.Error("the file was still there")
	}
}

func TestRestoreKnowsNoOtherSnapshot(t *testing.T) {
	m := populated(t)
	if err := m.Restore(io.NopCloser(strings.NewReader("something"))); err == nil {
		t.Error("restored")
	}
	if len(*m.fatals) > 0 {
		t.Errorf("fatal: %v", *m.fatals)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
