package store

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestCopyIsInstalledElsewhere(t *testing.T) {
	cfg := testConfig(t)
	want := fill(t, cfg, 200)
	source := mustOpen(t, cfg)
	if err := source.SetConfiguration(Position{Index: source.Applied().Index + 1, Term: 4}, []byte("voters")); err != nil {
		t.Fatal(err)
	}
	c, err := source.Copy()
	if err != nil {
		t.Fatal(err)
	}
	if c.Position != source.Applied() || c.ConfigurationIndex != c.Position.Index || string(c.Configuration) != "voters" {
		t.Errorf("the copy says %+v, applied is %v", c, source.Applied())
	}
	if c.Size > 1<<20 {
		t.Errorf("the copy of 200 records has %d bytes", c.Size)
	}
	update(t, source, testReserve(1000)) // which the copy is older than
	path := filepath.Join(t.TempDir(), "received")
	content, err := io.ReadAll(c)
	if err != nil || int64(len(content)) != c.Size {
		t.Fatalf("%d bytes of %d, error %v", len(content), c.Size, err)
	}
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(cfg.Path)); err != nil || len(entries) != 1 {
		t.Errorf("a copy that was closed leaves %v, error %v", entries, err)
	}

	other := testConfig(t)
	target := mustOpen(t, other)
	update(t, target, testReserve(2000)) // which is dropped
	if target.InstalledAt() != 0 {
		t.Errorf("installed at %d before anything was", target.InstalledAt())
	}
	if err := target.Install(path); err != nil {
		t.Fatal(err)
	}
	if got, at := stateHash(t, target); got != want || at != c.Position {
		t.Errorf("another state was installed, at %v", at)
	}
	if target.InstalledAt() != c.Position.Index || target.Durable() != c.Position {
		t.Errorf("installed at %d, durable %v, want %v", target.InstalledAt(), target.Durable(), c.Position)
	}
	if index, configuration := target.Configuration(); index != c.ConfigurationIndex || string(configuration) != "voters" {
		t.Errorf("configuration %q at %d", configuration, index)
	}
	if lookup(t, target, testIdentity(2000)) != nil {
		t.Error("a record of the state that was replaced is still there")
	}
	update(t, target, testReserve(3000)) // life goes on
	if err := target.Close(); err != nil {
		t.Fatal(err)
	}
	target = mustOpen(t, other)
	if target.InstalledAt() != c.Position.Index || lookup(t, target, testIdentity(3000)) == nil {
		t.Errorf("after reopening installed at %d", target.InstalledAt())
	}
}

// Invariants 7 and 8: a copy with any bit changed, or cut anywhere, is refused, and
// the state is what it was.
func TestInstallRefusesWhatIsNotAsItWasSent(t *testing.T) {
	cfg := testConfig(t)
	fill(t, cfg, 100)
	s := mustOpen(t, cfg)
	good, err := os.ReadFile(receive(t, s, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	update(t, s, testReserve(1000))
	want, _ := stateHash(t, s)
	path := filepath.Join(t.TempDir(), "received")
	refuse := func(what string, content []byte, kind error) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Install(path); !errors.Is(err, kind) || !strings.Contains(err.Error(), path) {
			t.Fatalf("%s: error %v", what, err)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		bad := bytes.Clone(good)
		bad[random.IntN(len(bad)-trailerBytes)] ^= byte(1) << random.IntN(8)
		refuse("a bit changed", bad, ErrCorrupt)
	}
	for i := range trailerBytes {
		bad := bytes.Clone(good)
		bad[len(bad)-1-i] ^= 1
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Install(path); err == nil {
			t.Errorf("a trailer changed in its last byte but %d is accepted", i)
		}
	}
	refuse("nothing", nil, ErrForeign)
	refuse("cut", good[:len(good)/2], ErrForeign)
	refuse("no trailer", good[:len(good)-trailerBytes], ErrForeign)
	refuse("a trailer behind nothing", appendTrailer(nil, 0, 0), ErrCorrupt)
	if got, _ := stateHash(t, s); got != want {
		t.Error("the state has changed")
	}
	if err := s.Install(filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

// What is whole and still not a copy of this shard's state is refused beneath its
// checksum.
func TestInstallRefusesWhatIsNotThisShards(t *testing.T) {
	s := mustOpen(t, testConfig(t))
	update(t, s, testReserve(7))
	want, _ := stateHash(t, s)
	install := func(path string, kind error) {
		t.Helper()
		if err := s.Install(path); !errors.Is(err, kind) || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v", err)
		}
		if got, _ := stateHash(t, s); got != want {
			t.Error("the state has changed")
		}
	}
	otherShard := testConfig(t)
	otherShard.Shard = 2
	install(receive(t, mustOpen(t, otherShard), t.TempDir()), ErrIdentification)

	sealedCopy := func(spoil func(path string)) string {
		cfg := testConfig(t)
		fill(t, cfg, 60)
		spoil(cfg.Path)
		content, err := os.ReadFile(cfg.Path)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "received")
		sum := checksum(content)
		if err := os.WriteFile(path, appendTrailer(content, int64(len(content)), sum), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	install(sealedCopy(func(path string) { changeFile(t, path, dropRecord) }), ErrCorrupt)
	install(sealedCopy(func(path string) { changeFile(t, path, swapRecord) }), ErrCorrupt)
	install(sealedCopy(func(path string) { changeFile(t, path, spoilResponse) }), ErrCorrupt)
}

func TestCloseWaitsForCopies(t *testing.T) {
	cfg := testConfig(t)
	fill(t, cfg, 100)
	s := mustOpen(t, cfg)
	copied := make(chan error, 1)
	go func() {
		c, err := s.Copy()
		if err == nil {
			err = c.Close()
		}
		copied <- err
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-copied; err != nil && !errors.Is(err, ErrClosed) {
		t.Errorf("copy: %v", err)
	}
	if err := s.View(func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("view: %v", err)
	}
	if _, err := s.Update(Position{Index: 1 << 40}, func(*Tx) error { return nil }); !errors.Is(err, ErrClosed) {
		t.Errorf("update: %v", err)
	}
	if _, _, err := s.Scan(0, 1, func(*admission.Record) bool { return true }); !errors.Is(err, ErrClosed) {
		t.Errorf("scan: %v", err)
	}
	if err := s.Flush(); !errors.Is(err, ErrClosed) {
		t.Errorf("flush: %v", err)
	}
	if entries, err := os.ReadDir(filepath.Dir(cfg.Path)); err != nil || len(entries) != 1 {
		t.Errorf("%v are left, error %v", entries, err)
	}
}

// receive writes a copy of the state into a file, as a node does that gets one.
func receive(t testing.TB, s *Store, directory string) string {
	t.Helper()
	c, err := s.Copy()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(directory, "received")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(f, c)
	if err != nil || n != c.Size {
		t.Fatalf("copied %d bytes of %d: %v", n, c.Size, err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(path, copySuffix) {
		t.Fatal("a received file would be removed by Open")
	}
	return path
}
