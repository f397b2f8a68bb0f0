package store

import (
	"bytes"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// refused opens what must not open, and checks that the file is named and unchanged.
func refused(t *testing.T, cfg Config, want error) {
	t.Helper()
	before, _ := os.ReadFile(cfg.Path)
	s, err := Open(cfg)
	if err == nil {
		_ = s.Close()
		t.Fatal("it was opened")
	}
	if !errors.Is(err, want) || !strings.Contains(err.Error(), cfg.Path) {
		t.Errorf("error %q, want %q, and the name of the file", err, want)
	}
	if after, _ := os.ReadFile(cfg.Path); string(after) != string(before) {
		t.Error("the file was changed")
	}
}

// fill puts some records into a new state file, some with long responses, and
// returns the hash of the state.
func fill(t testing.TB, cfg Config, records int) [32]byte {
	t.Helper()
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for i := range records {
		answer := update(t, s, testReserve(i))[0]
		if i%5 == 0 {
			update(t, s, admission.Commit{Identity: testIdentity(i), Token: answer.Token, Response: admission.Response{
				Bytes: 1, Stored: make([]byte, 90*i+1),
			}})
		}
		if i%20 == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	sum, _ := stateHash(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return sum
}

// Invariant 7.
func TestOpenRefuses(t *testing.T) {
	write := func(content []byte) func(t *testing.T, cfg Config) {
		return func(t *testing.T, cfg Config) {
			if err := os.WriteFile(cfg.Path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	inBolt := func(do func(tx *bolt.Tx) error) func(t *testing.T, cfg Config) {
		return func(t *testing.T, cfg Config) { changeFile(t, cfg.Path, do) }
	}
	truncated := func(to int64) func(t *testing.T, cfg Config) {
		return func(t *testing.T, cfg Config) {
			fill(t, cfg, 100)
			if err := os.Truncate(cfg.Path, to); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, cfg Config)
		want    error
	}{
		"an empty file":      {write(nil), ErrCorrupt},
		"a short text":       {write([]byte("hello")), ErrForeign},
		"a long text":        {write([]byte(strings.Repeat("hello ", 10000))), ErrForeign},
		"zeros":              {write(make([]byte, 1<<16)), ErrForeign},
		"another database":   {inBolt(func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("x")); return err }), ErrForeign},
		"an empty database":  {inBolt(func(*bolt.Tx) error { return nil }), ErrForeign},
		"half a file":        {truncated(1 << 16), ErrCorrupt},
		"a byte too few":     {func(t *testing.T, cfg Config) { fill(t, cfg, 100); shorten(t, cfg.Path) }, ErrCorrupt},
		"a directory":        {func(t *testing.T, cfg Config) { _ = os.Mkdir(cfg.Path, 0o700) }, nil},
		"a record too few":   {func(t *testing.T, cfg Config) { fill(t, cfg, 100); inBolt(dropRecord)(t, cfg) }, ErrCorrupt},
		"a response too few": {func(t *testing.T, cfg Config) { fill(t, cfg, 100); inBolt(dropResponse)(t, cfg) }, ErrCorrupt},
		"an older record":    {func(t *testing.T, cfg Config) { fill(t, cfg, 100); inBolt(swapRecord)(t, cfg) }, ErrCorrupt},
		"another format": {func(t *testing.T, cfg Config) {
			fill(t, cfg, 1)
			inBolt(func(tx *bolt.Tx) error { return tx.Bucket(metaBucket).Put(formatKey, []byte{2}) })(t, cfg)
		}, ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			c.prepare(t, cfg)
			if c.want == nil {
				if s, err := Open(cfg); err == nil || !strings.Contains(err.Error(), cfg.Path) {
					_ = s.Close()
					t.Fatalf("error %v", err)
				}
				return
			}
			refused(t, cfg, c.want)
		})
	}
}

// shorten cuts the file to one byte less than is in use.
func shorten(t *testing.T, path string) {
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, _ := file.Stat()
	meta, err := readMeta(file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(meta.pages)*meta.pageBytes-1); err != nil {
		t.Fatal(err)
	}
}

func dropRecord(tx *bolt.Tx) error {
	key := sequenceKey(7)
	return tx.Bucket(recordsBucket).Delete(key[:])
}

func dropResponse(tx *bolt.Tx) error {
	key := sequenceKey(51)
	if tx.Bucket(responsesBucket).Get(key[:]) == nil {
		return errors.New("there is none to drop")
	}
	return tx.Bucket(responsesBucket).Delete(key[:])
}

// swapRecord puts a whole record that was never there: its checksum is right.
func swapRecord(tx *bolt.Tx) error {
	key := sequenceKey(7)
	r, response, err := decodeRecord(7, tx.Bucket(recordsBucket).Get(key[:]))
	if err != nil {
		return err
	}
	r.Fence++
	value, err := encodeRecord(r, 7, response)
	if err != nil {
		return err
	}
	return tx.Bucket(recordsBucket).Put(key[:], value)
}

func TestOpenRefusesAnotherShardsFile(t *testing.T) {
	cfg := testConfig(t)
	fill(t, cfg, 3)
	for name, id := range map[string]Identification{
		"cluster": {ClusterID: "other", Shard: 1, Shards: 3},
		"shard":   {ClusterID: "test", Shard: 2, Shards: 3},
		"shards":  {ClusterID: "test", Shard: 1, Shards: 6},
	} {
		t.Run(name, func(t *testing.T) {
			wrong := cfg
			wrong.Identification = id
			refused(t, wrong, ErrIdentification)
		})
	}
}

func TestOpenCreatesOnlyWhereToldTo(t *testing.T) {
	cfg := testConfig(t)
	cfg.Create = false
	if _, err := Open(cfg); !errors.Is(err, ErrNotExist) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(cfg.Path); err == nil {
		t.Error("it was created")
	}
}

func TestOpenWaitsForNobodyElsesLock(t *testing.T) {
	cfg := testConfig(t)
	mustOpen(t, cfg)
	if _, err := Open(cfg); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), cfg.Path) {
		t.Errorf("error %v", err)
	}
}

// A file that has been renamed is called by its name, in the process that renamed it too.
func TestErrorsNameTheFileAsItIsCalled(t *testing.T) {
	for name, prepare := range map[string]func(*testing.T, *Store){
		"created":   func(*testing.T, *Store) {},
		"installed": func(t *testing.T, s *Store) { must(t, s.Install(receive(t, s, t.TempDir()))) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := testConfig(t)
			cfg.Fatal = nil
			s, err := Open(cfg)
			must(t, err)
			update(t, s, testReserve(1))
			prepare(t, s)
			must(t, s.file.handle.Close())
			update(t, s, testReserve(2))
			err = s.Flush()
			if path := (*os.PathError)(nil); !errors.As(err, &path) || path.Path != cfg.Path {
				t.Errorf("error %v, want one of %s", err, cfg.Path)
			}
			if err := s.Close(); !errors.Is(err, ErrFailed) {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestOpenRemovesLeftovers(t *testing.T) {
	cfg := testConfig(t)
	for _, name := range []string{cfg.Path + newSuffix, cfg.Path + copySuffix + "123"} {
		if err := os.WriteFile(name, []byte("left over"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mustOpen(t, cfg)
	entries, err := os.ReadDir(filepath.Dir(cfg.Path))
	if err != nil || len(entries) != 1 {
		t.Errorf("%v are left, error %v", entries, err)
	}
}

// Invariants 7 and 8: a file with a byte changed anywhere is refused, or has it where
// nothing is stored. bbolt is never given a page that it would panic over.
func TestOpenAfterAnyByteHasChanged(t *testing.T) {
	cfg := testConfig(t)
	want := fill(t, cfg, 100)
	cfg.Fatal = nil
	file, err := os.OpenFile(cfg.Path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	random := rand.New(rand.NewPCG(1, 2))
	flips := 800
	if testing.Short() {
		flips = 100
	}
	for range flips {
		at, bit := randomBit(t, random, file)
		flip(t, file, at, bit)
		s, err := Open(cfg)
		if err != nil {
			if !strings.Contains(err.Error(), cfg.Path) {
				t.Fatalf("byte %d bit %x: the error does not name the file: %v", at, bit, err)
			}
			flip(t, file, at, bit)
			continue
		}
		// Responses apart are read only when they are wanted: it shows then.
		got, _, err := s.StateHash()
		if err == nil && got != want {
			t.Errorf("byte %d bit %x: another state was opened", at, bit)
		}
		if closed := s.Close(); err == nil && closed != nil {
			t.Errorf("byte %d bit %x: close: %v", at, bit, closed)
		}
		flip(t, file, at, bit)
	}
}

// randomBit draws one of the file's bits, every other time from where the structure
// of a page is.
func randomBit(t *testing.T, random *rand.Rand, file *os.File) (at int64, bit byte) {
	t.Helper()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	at = random.Int64N(info.Size())
	if random.IntN(2) == 0 {
		at = min(at/4096*4096+random.Int64N(128), info.Size()-1)
	}
	return at, byte(1) << random.IntN(8)
}

func flip(t *testing.T, file *os.File, at int64, bit byte) {
	t.Helper()
	var b [1]byte
	if _, err := file.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= bit
	if _, err := file.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// changeFile changes a state file behind the store's back.
func changeFile(t *testing.T, path string, do func(tx *bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(do); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func checksum(content []byte) uint32 { return crc32.Checksum(content, checksumTable) }

// spoilResponse changes a response and not its length.
func spoilResponse(tx *bolt.Tx) error {
	key := sequenceKey(51)
	stored := bytes.Clone(tx.Bucket(responsesBucket).Get(key[:]))
	if len(stored) == 0 {
		return errors.New("there is none to spoil")
	}
	stored[len(stored)/2] ^= 1
	return tx.Bucket(responsesBucket).Put(key[:], stored)
}
