package store

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

// logEntry is one entry of a log that tests apply, and apply again.
type logEntry struct {
	advance       time.Duration
	commands      []admission.Command
	reclaim       int
	configuration string
}

// applyTo carries the entry out on the store.
func (e logEntry) applyTo(s *Store, index uint64) (bool, error) {
	at := Position{Index: index, Term: 1 + index/10}
	if e.configuration != "" {
		return true, s.SetConfiguration(at, []byte(e.configuration))
	}
	return s.Update(at, func(tx *Tx) error {
		clock := tx.Clock()
		clock.Term = at.Term
		clock.Now = clock.Now.Add(e.advance)
		tx.SetClock(clock)
		for _, command := range e.commands {
			if _, err := decide(tx, command); err != nil {
				return err
			}
		}
		due, err := tx.Due(clock.Now, e.reclaim)
		if err != nil {
			return err
		}
		for _, r := range due {
			view, err := tx.Admission(r.Identity)
			if err != nil {
				return err
			}
			if err := tx.Apply(admission.Reclaim(view, clock.Now), view.Record); err != nil {
				return err
			}
		}
		return nil
	})
}

// model is the state as a plain map has it.
type model struct {
	records       map[admission.Identity]*admission.Record // with the bytes of their responses
	clock         Clock
	counter       uint64
	last          uint64
	configuration string
}

func newModel() *model { return &model{records: map[admission.Identity]*admission.Record{}} }

// modelOf is the state after the first entries of a log.
func modelOf(log []logEntry) *model {
	m := newModel()
	for i, e := range log {
		m.apply(e, uint64(i+1))
	}
	return m
}

func (m *model) apply(e logEntry, index uint64) {
	if e.configuration != "" {
		m.configuration = e.configuration
		return
	}
	m.clock.Term = 1 + index/10
	m.clock.Now = m.clock.Now.Add(e.advance)
	for _, command := range e.commands {
		id := command.On()
		m.put(id, admission.Decide(m.view(id), admission.Instant{Now: m.clock.Now, WallNanos: 1e18}, command))
	}
	for _, r := range m.due(m.clock.Now, e.reclaim) {
		m.put(r.Identity, admission.Reclaim(m.view(r.Identity), m.clock.Now))
	}
}

func (m *model) view(id admission.Identity) admission.View {
	v := admission.View{Counter: m.counter, Record: withoutResponse(m.records[id])}
	for other, r := range m.records {
		if other.Namespace == id.Namespace && r.State != admission.StateNone {
			v.NamespaceRecords++
		}
	}
	return v
}

func withoutResponse(r *admission.Record) *admission.Record {
	if r == nil {
		return nil
	}
	r = r.Clone()
	r.Response.Stored = nil
	return r
}

func (m *model) put(id admission.Identity, d admission.Decision) {
	m.counter = d.Counter
	if d.Deleted {
		delete(m.records, id)
	}
	if d.Record == nil {
		return
	}
	r := d.Record.Clone()
	if before := m.records[id]; before != nil && before.State == admission.StateCommitted && r.State == admission.StateCommitted && r.Response.Stored == nil {
		r.Response.Stored = before.Response.Stored
	}
	if r.Sequence == 0 {
		m.last++
		r.Sequence = m.last
	}
	m.records[id] = r
}

// inOrder returns the records by the order of their arrival.
func (m *model) inOrder() []*admission.Record {
	var records []*admission.Record
	for _, r := range m.records {
		records = append(records, r)
	}
	slices.SortFunc(records, func(a, b *admission.Record) int { return cmp.Compare(a.Sequence, b.Sequence) })
	return records
}

func (m *model) due(now admission.Time, most int) []*admission.Record {
	var due []*admission.Record
	for _, r := range m.inOrder() {
		if alarm := r.Alarm(); alarm <= now && alarm != admission.Never {
			due = append(due, r)
		}
	}
	slices.SortStableFunc(due, func(a, b *admission.Record) int { return cmp.Compare(a.Alarm(), b.Alarm()) })
	return due[:min(most, len(due))]
}

// same compares records as whoever reads them does: an empty slice is a nil one.
func same(a, b *admission.Record) bool {
	return reflect.DeepEqual(plain(a), plain(b))
}

func plain(r *admission.Record) *admission.Record {
	if r = withoutResponse(r); r != nil {
		if len(r.Ended) == 0 {
			r.Ended = nil
		}
		if len(r.Fingerprint) == 0 {
			r.Fingerprint = nil
		}
	}
	return r
}

// check compares everything that a store shows with the model.
func (m *model) check(t failer, s *Store) {
	if err := s.View(func(tx *Tx) error { return m.checkView(tx) }); err != nil {
		t.Fatalf("%v", err)
	}
	want, next, more := m.inOrder(), uint64(0), true
	for more {
		var err error
		next, more, err = s.Scan(next, 3, func(r *admission.Record) bool {
			if len(want) == 0 || !same(r, want[0]) {
				err := fmt.Sprintf("a scan shows %+v, want the first of %d", r, len(want))
				t.Fatalf("%s", err)
			}
			want = want[1:]
			return true
		})
		if err != nil {
			t.Fatalf("%v", err)
		}
	}
	if len(want) > 0 {
		t.Fatalf("a scan misses %d records", len(want))
	}
	var states [admission.States]uint64
	alarm := admission.Never
	for _, r := range m.records {
		states[r.State]++
		alarm = min(alarm, r.Alarm())
	}
	if stats := s.Stats(); stats.Records != states || stats.Counter != m.counter || stats.Clock != m.clock {
		t.Fatalf("stats are %+v, want %v, counter %d, clock %v", stats, states, m.counter, m.clock)
	}
	if got, some := s.NextAlarm(); got != alarm || some != (alarm != admission.Never) {
		t.Fatalf("the next alarm is at %d, want %d", got, alarm)
	}
}

func (m *model) checkView(tx *Tx) error {
	for i := range modelIdentities {
		id := testIdentity(i)
		view, err := tx.Admission(id)
		if err != nil {
			return err
		}
		if want := m.view(id); !same(view.Record, want.Record) || view.Counter != want.Counter || view.NamespaceRecords != want.NamespaceRecords {
			return fmt.Errorf("the view of %v is %+v with record %+v, want %+v with %+v", id, view, view.Record, want, want.Record)
		}
		if view.Record == nil {
			continue
		}
		stored, err := tx.Response(view.Record)
		if err != nil {
			return err
		}
		if want := m.records[id].Response.Stored; !bytes.Equal(stored, want) {
			return fmt.Errorf("the response of %v has %d bytes, want %d", id, len(stored), len(want))
		}
	}
	for _, most := range []int{1, 1000} {
		due, err := tx.Due(m.clock.Now, most)
		if err != nil {
			return err
		}
		if want := m.due(m.clock.Now, most); !slices.EqualFunc(due, want, same) {
			return fmt.Errorf("%d due of at most %d, want %d", len(due), most, len(want))
		}
	}
	return nil
}

const modelIdentities = 12

// drawEntry makes an entry that has a good chance to be about something: tokens and
// revisions come from the model.
func drawEntry(t *rapid.T, m *model) logEntry {
	if rapid.IntRange(0, 15).Draw(t, "kind") == 0 {
		return logEntry{configuration: rapid.StringN(1, 5, 9).Draw(t, "configuration")}
	}
	e := logEntry{
		advance: rapid.SampledFrom([]time.Duration{0, 0, time.Second, time.Minute, 20 * time.Minute, 2 * time.Hour}).Draw(t, "advance"),
		reclaim: rapid.SampledFrom([]int{0, 0, 2, 100}).Draw(t, "reclaim"),
	}
	for range rapid.IntRange(0, 6).Draw(t, "commands") {
		e.commands = append(e.commands, drawCommand(t, m))
	}
	return e
}

func drawCommand(t *rapid.T, m *model) admission.Command {
	id := testIdentity(rapid.IntRange(0, modelIdentities-1).Draw(t, "identity"))
	r := m.records[id]
	if r == nil {
		r = &admission.Record{}
	}
	token := admission.Token{Fence: r.Fence, Attempt: r.Holder}
	committed := admission.Response{
		Hash: [32]byte{1}, Bytes: 1,
		Stored: bytes.Repeat([]byte{byte(r.Sequence), 7}, rapid.SampledFrom([]int{0, 1, 512, 513, 4000}).Draw(t, "response")),
	}
	switch rapid.IntRange(0, 8).Draw(t, "command") {
	case 0, 1:
		return admission.Commit{Identity: id, Token: token, Response: committed, Retention: time.Minute}
	case 2:
		return admission.Release{Identity: id, Token: token, Reason: "nothing"}
	case 3:
		return admission.Extend{Identity: id, Token: token, Span: admission.ExtendSpanDefault}
	case 4:
		return admission.Resolve{Identity: id, Revision: r.Revision, Applied: rapid.Bool().Draw(t, "applied"), Response: committed}
	case 5:
		return admission.Purge{Identity: id, Revision: r.Revision, Force: rapid.Bool().Draw(t, "force")}
	default:
		return admission.Reserve{
			Identity: id, Attempt: testAttempt(rapid.IntRange(1, 30).Draw(t, "attempt")),
			PendingTTL: time.Minute, Retention: rapid.SampledFrom([]time.Duration{time.Second, time.Hour}).Draw(t, "retention"),
			OnLapse: admission.OnLapse(rapid.IntRange(0, 1).Draw(t, "on lapse")), WantedUntil: admission.Never,
		}
	}
}

// openHashed opens a store whose identities meet in few hashes, and whose commits
// do not wait for the disk.
func openHashed(t testing.TB, cfg Config) (*Store, error) {
	t.Helper()
	s := newStore(cfg.WithDefaults())
	s.hash = func(identity []byte) uint64 { return uint64(identity[len(identity)-1]) % 3 }
	s, err := open(s)
	if err == nil {
		s.file.db.NoSync = true // a crash of the process, not of the machine
	}
	return s, err
}

// abandon ends the store as a crash does: what is not durable is gone.
func (s *Store) abandon() error {
	return s.shut(func() error { return nil })
}

// Invariants 1, 2, 3 and 5: driven by random commands, flushed, closed, crashed and
// replaced by its own copies at random, a store shows what a plain map does. After a
// crash that is the state as of the durable position, and replaying the log from
// there leads to the same state as without.
func TestStoreAgainstAModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := testConfig(t)
		cfg.FlushInterval = FlushIntervalMax // flushes are drawn, or come by the count
		cfg.FlushEntries = rapid.SampledFrom([]int{4, 1000}).Draw(rt, "flush entries")
		s, err := openHashed(t, cfg)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		var log []logEntry
		m := newModel()
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0:
				if err := s.Flush(); err != nil {
					rt.Fatal(err)
				}
				if s.Durable() != s.Applied() {
					rt.Fatalf("flushed up to %v of %v", s.Durable(), s.Applied())
				}
			case 1:
				if s = crash(t, rt, s, cfg, log); s == nil {
					return
				}
			case 2:
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				if s, err = openHashed(t, cfg); err != nil {
					rt.Fatal(err)
				}
			case 3:
				path := receive(t, s, t.TempDir())
				if err := s.Install(path); err != nil {
					rt.Fatal(err)
				}
				if s.InstalledAt() != s.Applied().Index {
					rt.Fatalf("installed at %d, applied %v", s.InstalledAt(), s.Applied())
				}
			default:
				e := drawEntry(rt, m)
				log = append(log, e)
				m.apply(e, uint64(len(log)))
				if applied, err := e.applyTo(s, uint64(len(log))); err != nil || !applied {
					rt.Fatalf("applied %v, error %v", applied, err)
				}
			}
			m.check(rt, s)
		}
		checkHash(t, rt, s, log)
	})
}

// crash drops what is not durable, checks what is left, and replays the log.
func crash(t *testing.T, rt *rapid.T, s *Store, cfg Config, log []logEntry) *Store {
	if err := s.abandon(); err != nil {
		rt.Fatal(err)
	}
	durable := s.Durable()
	s, err := openHashed(t, cfg)
	if err != nil {
		rt.Fatal(err)
	}
	if s.Applied() != durable || s.Durable() != durable {
		rt.Fatalf("durable was %v, is %v, applied %v", durable, s.Durable(), s.Applied())
	}
	at := modelOf(log[:durable.Index])
	at.check(rt, s)
	if _, configuration := s.Configuration(); string(configuration) != at.configuration {
		rt.Fatalf("configuration %q, want %q", configuration, at.configuration)
	}
	for i, e := range log {
		if _, err := e.applyTo(s, uint64(i+1)); err != nil {
			rt.Fatal(err)
		}
	}
	return s
}

// checkHash compares the state's hash with that of a store that has applied the same
// log and nothing else happened to.
func checkHash(t *testing.T, rt *rapid.T, s *Store, log []logEntry) {
	other, err := Open(testConfig(t))
	if err != nil {
		rt.Fatal(err)
	}
	defer func() { _ = other.Close() }()
	for i, e := range log {
		if _, err := e.applyTo(other, uint64(i+1)); err != nil {
			rt.Fatal(err)
		}
	}
	want, wantAt := stateHash(t, other)
	if got, at := stateHash(t, s); got != want || at != wantAt {
		rt.Fatalf("hash %x at %v, want %x at %v", got, at, want, wantAt)
	}
}
