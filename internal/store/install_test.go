package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// The layers at which a copy is damaged. What lies above is made right again, so that
// what is beneath is not refused for a checksum only.
const (
	damageAny    = iota // the file as it is sent, and nothing made right
	damagePages         // a place in it, and the checksums of its first pages and of the copy
	damageValue         // one value, and its own checksum and the head's sums, too
	damageKey           // one record is there a second time, under another sequence
	damageLength        // the file ends elsewhere, or goes on
	damages
)

// smallCopy is a copy of a state with records of many kinds, as another node gets it, and
// the state's hash.
func smallCopy(t testing.TB) (sent []byte, whole [32]byte) {
	t.Helper()
	cfg := testConfig(t)
	fill(t, cfg, 16) // one response of them apart
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	token := update(t, s, testReserve(100))[0].Token
	held := testReserve(101)
	held.OnLapse = admission.Hold
	update(t, s, admission.Release{Identity: testIdentity(100), Token: token, Reason: "not today"}, held)
	update(t, s, admission.Purge{Identity: testIdentity(3), Fence: lookup(t, s, testIdentity(3)).Fence, Force: true})
	if err := s.SetConfiguration(Position{Index: s.Applied().Index + 1, Term: 1}, []byte("voters")); err != nil {
		t.Fatal(err)
	}
	whole, _ = stateHash(t, s)
	if sent, err = os.ReadFile(receive(t, s, t.TempDir())); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return sent, whole
}

// sealCopy puts a trailer behind a file's content.
func sealCopy(content []byte) []byte {
	return appendTrailer(bytes.Clone(content), int64(len(content)), checksum(content))
}

// patched returns content with a patch in it that begins at some place of it, and is cut
// off at its end.
func patched(content []byte, at uint32, patch []byte) []byte {
	changed := bytes.Clone(content)
	if len(changed) > 0 {
		copy(changed[int(at)%len(changed):], patch)
	}
	return changed
}

// damagedPages is a copy with some bytes changed.
func damagedPages(content []byte, at uint32, patch []byte) []byte {
	changed := patched(content, at, patch)
	pageBytes := os.Getpagesize()
	for page := range 2 {
		sealMeta(changed[page*pageBytes+boltHeaderBytes:][:boltMetaBytes])
	}
	return sealCopy(changed)
}

// edited is a copy with a change that is made by bbolt itself.
func edited(t *testing.T, content []byte, do func(tx *bolt.Tx) error) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "edited")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(do), db.Close()); err != nil {
		t.Fatal(err)
	}
	changed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sealCopy(changed)
}

// patchValue changes one of the values in the file: of the head, the identification, the
// format, a record or a response.
func patchValue(tx *bolt.Tx, which uint16, at uint32, patch []byte) error {
	type place struct{ name, key []byte }
	var places []place
	for _, name := range [][]byte{metaBucket, recordsBucket, responsesBucket} {
		if err := tx.Bucket(name).ForEach(func(key, _ []byte) error {
			places = append(places, place{name, bytes.Clone(key)})
			return nil
		}); err != nil {
			return err
		}
	}
	chosen := places[int(which)%len(places)]
	bucket := tx.Bucket(chosen.name)
	value := bucket.Get(chosen.key)
	switch {
	case bytes.Equal(chosen.name, recordsBucket):
		value = sealed(binary.BigEndian.Uint64(chosen.key), patched(value[:len(value)-checksumBytes], at, patch))
	case bytes.Equal(chosen.name, responsesBucket), bytes.Equal(chosen.key, formatKey):
		value = patched(value, at, patch)
	default:
		value = appendChecksum(patched(value[:len(value)-checksumBytes], at, patch))
	}
	if err := bucket.Put(chosen.key, value); err != nil {
		return err
	}
	if bytes.Equal(chosen.key, headKey) {
		return nil
	}
	return sumUp(tx)
}

// doubleRecord puts one of the records under another sequence, too.
func doubleRecord(tx *bolt.Tx, which uint16, sequence uint64) error {
	records := tx.Bucket(recordsBucket)
	var keys [][]byte
	if err := records.ForEach(func(key, _ []byte) error {
		keys = append(keys, bytes.Clone(key))
		return nil
	}); err != nil {
		return err
	}
	value := records.Get(keys[int(which)%len(keys)])
	key := sequenceKey(sequence)
	if err := records.Put(key[:], sealed(sequence, value[:len(value)-checksumBytes])); err != nil {
		return err
	}
	return sumUp(tx)
}

// sumUp has the head say what the records come to.
func sumUp(tx *bolt.Tx) error {
	h, err := decodeHead(tx.Bucket(metaBucket).Get(headKey))
	if err != nil {
		return err
	}
	h.sums = sums{responses: uint64(tx.Bucket(responsesBucket).Stats().KeyN)}
	if err := tx.Bucket(recordsBucket).ForEach(func(key, value []byte) error {
		sequence := binary.BigEndian.Uint64(key)
		h.sums.records++
		h.sums.digest += contribution(sequence, valueChecksum(value))
		h.lastSequence = max(h.lastSequence, sequence)
		return nil
	}); err != nil {
		return err
	}
	return tx.Bucket(metaBucket).Put(headKey, h.encode())
}

// damaged is a copy with a damage at one layer.
func damaged(t *testing.T, good []byte, layer byte, which uint16, at uint32, patch []byte) []byte {
	t.Helper()
	content := good[:len(good)-trailerBytes]
	switch layer {
	case damagePages:
		return damagedPages(content, at, patch)
	case damageValue:
		return edited(t, content, func(tx *bolt.Tx) error { return patchValue(tx, which, at, patch) })
	case damageKey:
		return edited(t, content, func(tx *bolt.Tx) error { return doubleRecord(tx, which, uint64(at)) })
	case damageLength:
		end := int(at) % (len(content) + 1)
		return sealCopy(append(bytes.Clone(content[:end]), patch...))
	}
	return patched(good, at, patch)
}

// FuzzInstall looks for a file that is received, at whatever layer it is wrong, that the
// reader falls over, that is refused and has changed something, or that is accepted and
// not a state: every record is there to be read and found, and it is the same state after
// the file has been opened anew.
func FuzzInstall(f *testing.F) {
	good, whole := smallCopy(f)
	content := good[:len(good)-trailerBytes]
	f.Add(byte(damageAny), uint16(0), uint32(0), []byte{})
	f.Add(byte(damageAny), uint16(0), uint32(len(content)), []byte(trailerMark))
	f.Add(byte(damagePages), uint16(0), uint32(len(content)/2), []byte{1})
	f.Add(byte(damageValue), uint16(3), uint32(1), []byte{byte(admission.StateInDoubt)})
	f.Add(byte(damageKey), uint16(0), uint32(500), []byte{})
	f.Add(byte(damageLength), uint16(0), uint32(len(content)), make([]byte, 100))
	f.Fuzz(func(t *testing.T, layer byte, which uint16, at uint32, patch []byte) {
		if len(patch) > 1<<14 {
			t.Skip("longer ones overwrite all of it")
		}
		layer %= damages
		sum, installed := install(t, damaged(t, good, layer, which, at, patch))
		// What has the right checksum is a state of its own; what has not is the one that was
		// sent, or none.
		if installed && (layer == damageAny || layer == damagePages) && sum != whole {
			t.Error("another state than was sent was installed")
		}
	})
}

// install gives a file to a store that has a state already, and returns the hash of what
// it installed.
func install(t *testing.T, sent []byte) (sum [32]byte, installed bool) {
	t.Helper()
	cfg := testConfig(t)
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	update(t, s, testReserve(500))
	before, at := s.Digest()
	path := filepath.Join(t.TempDir(), "received")
	if err := os.WriteFile(path, sent, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Install(path); err != nil {
		if !strings.Contains(err.Error(), path) {
			t.Errorf("the error does not name the file: %v", err)
		}
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrForeign) && !errors.Is(err, ErrIdentification) {
			t.Errorf("the error does not say of what kind it is: %v", err)
		}
		if after, now := s.Digest(); after != before || now != at || lookup(t, s, testIdentity(500)) == nil {
			t.Errorf("it was refused (%v), and the state has changed", err)
		}
		return sum, false
	}
	sum, position := stateHash(t, s)
	records := readAll(t, s)
	digest, _ := s.Digest()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(cfg)
	if err != nil {
		t.Fatalf("it was installed, and does not open: %v", err)
	}
	defer func() { _ = again.Close() }()
	if sumNow, positionNow := stateHash(t, again); sumNow != sum || positionNow != position {
		t.Errorf("another state after it was opened anew, at %v and then at %v", position, positionNow)
	}
	if digestNow, _ := again.Digest(); digestNow != digest || readAll(t, again) != records {
		t.Error("another digest, or other records, after it was opened anew")
	}
	return sum, true
}

// readAll reads every record and looks it up by its identity.
func readAll(t *testing.T, s *Store) (records int) {
	t.Helper()
	var all []*admission.Record
	for after, more := uint64(0), true; more; {
		var err error
		after, more, err = s.Scan(after, PageRecordsMax, func(r *admission.Record) bool {
			all = append(all, r)
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range all {
		if found := lookup(t, s, r.Identity); found == nil || found.Sequence != r.Sequence {
			t.Errorf("record %d is found as %+v", r.Sequence, found)
		}
	}
	return len(all)
}
