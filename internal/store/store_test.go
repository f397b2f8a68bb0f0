package store

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testIdentification is whose state the tests keep.
var testIdentification = Identification{ClusterID: "test", Shard: 1, Shards: 3}

func testConfig(t testing.TB) Config {
	t.Helper()
	return Config{
		Path:           filepath.Join(t.TempDir(), "state.db"),
		Create:         true,
		Identification: testIdentification,
		Logger:         slog.New(slog.DiscardHandler),
		MapBytes:       1 << 30,
		Fatal:          func(err error) { t.Errorf("the store failed: %v", err) },
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t testing.TB, cfg Config) *Store {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func testIdentity(i int) admission.Identity {
	return admission.Identity{Namespace: fmt.Sprintf("n%d", i%3), Principal: "p", Operation: "POST /x", Key: fmt.Sprintf("key-%d", i)}
}

func testAttempt(i int) (id admission.AttemptID) {
	key := sequenceKey(uint64(i))
	copy(id[:], key[:])
	return id
}

func testReserve(i int) admission.Reserve {
	return admission.Reserve{
		Identity: testIdentity(i), Attempt: testAttempt(i), Fingerprint: []byte("fingerprint"),
		PendingTTL: time.Minute, Retention: time.Hour, Owner: "owner", WantedUntil: admission.Never,
	}
}

// decide carries out one command at the present time of the shard's clock.
func decide(tx *Tx, command admission.Command) (admission.Decision, error) {
	view, err := tx.Admission(command.On())
	if err != nil {
		return admission.Decision{}, err
	}
	d := admission.Decide(view, admission.Instant{Now: tx.Clock().Now, WallNanos: 1e18}, command)
	return d, tx.Apply(d, view.Record)
}

// update applies commands as the next entry of the log.
func update(t testing.TB, s *Store, commands ...admission.Command) []admission.Answer {
	t.Helper()
	var answers []admission.Answer
	at := Position{Index: s.Applied().Index + 1, Term: 1}
	applied, err := s.Update(at, func(tx *Tx) error {
		for _, command := range commands {
			d, err := decide(tx, command)
			if err != nil {
				return err
			}
			answers = append(answers, d.Answer)
		}
		return nil
	})
	if err != nil || !applied {
		t.Fatalf("update: applied %v, error %v", applied, err)
	}
	return answers
}

// advance moves the shard's clock.
func advance(t testing.TB, s *Store, by time.Duration) {
	t.Helper()
	at := Position{Index: s.Applied().Index + 1, Term: 1}
	if _, err := s.Update(at, func(tx *Tx) error {
		c := tx.Clock()
		c.Now = c.Now.Add(by)
		tx.SetClock(c)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// lookup returns the stored record.
func lookup(t testing.TB, s *Store, id admission.Identity) *admission.Record {
	t.Helper()
	var r *admission.Record
	if err := s.View(func(tx *Tx) error {
		view, err := tx.Admission(id)
		r = view.Record
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return r
}

func response(t testing.TB, s *Store, id admission.Identity) []byte {
	t.Helper()
	var stored []byte
	if err := s.View(func(tx *Tx) error {
		view, err := tx.Admission(id)
		if err != nil {
			return err
		}
		stored, err = tx.Response(view.Record)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return stored
}

func stateHash(t testing.TB, s *Store) ([32]byte, Position) {
	t.Helper()
	sum, at, err := s.StateHash()
	if err != nil {
		t.Fatal(err)
	}
	return sum, at
}

func TestReopenKeepsEverything(t *testing.T) {
	cfg := testConfig(t)
	s := mustOpen(t, cfg)
	body := make([]byte, 5000)
	body[17] = 7
	for i := range 1000 {
		answer := update(t, s, testReserve(i))[0]
		if answer.Outcome != admission.OutcomeGranted {
			t.Fatalf("reserve %d: %+v", i, answer)
		}
		if i%2 == 0 {
			update(t, s, admission.Commit{Identity: testIdentity(i), Token: answer.Token, Response: admission.Response{
				Hash: [32]byte{1}, Bytes: 9, Stored: body[:i*5+1],
			}})
		}
		if i == 500 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.SetConfiguration(Position{Index: s.Applied().Index + 1, Term: 2}, []byte("configuration")); err != nil {
		t.Fatal(err)
	}
	before, at := stateHash(t, s)
	if at != s.Applied() || at != s.Durable() {
		t.Fatalf("hash at %v, applied %v, durable %v", at, s.Applied(), s.Durable())
	}
	stats := s.Stats()
	alarm, _ := s.NextAlarm()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s = mustOpen(t, cfg)
	if after, _ := stateHash(t, s); after != before {
		t.Error("another hash after reopening")
	}
	if now := s.Stats(); now.Records != stats.Records || now.Namespaces != 3 || now.Counter != stats.Counter || now.Applied != at {
		t.Errorf("stats were %+v, are %+v", stats, now)
	}
	if again, _ := s.NextAlarm(); again != alarm {
		t.Errorf("next alarm was %v, is %v", alarm, again)
	}
	if index, encoded := s.Configuration(); index != at.Index || string(encoded) != "configuration" {
		t.Errorf("configuration %q at %d", encoded, index)
	}
	for i := 0; i < 1000; i += 2 {
		if got := response(t, s, testIdentity(i)); string(got) != string(body[:i*5+1]) {
			t.Fatalf("response %d is %d bytes long, not %d", i, len(got), i*5+1)
		}
	}
	if applied, err := s.Update(at, func(*Tx) error { t.Error("applied twice"); return nil }); applied || err != nil {
		t.Errorf("applied %v, error %v", applied, err)
	}
}
