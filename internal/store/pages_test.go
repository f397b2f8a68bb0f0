package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math"
	"os"
	"path/filepath"
	"testing"

	bolt "go.etcd.io/bbolt"
)

// smallFile is the content of a database with branches, long values and buckets
// within pages and outside them, in pages of 1 KiB.
func smallFile(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "small")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: boltPageBytesMin, NoFreelistSync: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{recordsBucket, responsesBucket, metaBucket} {
			bucket, err := tx.CreateBucket(name)
			if err != nil {
				return err
			}
			for i := range map[string]int{"records": 40, "responses": 3, "meta": 1}[string(name)] {
				key := sequenceKey(uint64(i + 1))
				if err := bucket.Put(key[:], make([]byte, 100+2000*len(name)/9*(i%2))); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	meta, err := readMeta(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return content[:int64(meta.pages)*meta.pageBytes]
}

func TestPagesThatBboltWroteAreFine(t *testing.T) {
	content := smallFile(t)
	if err := checkTree(bytes.NewReader(content), int64(len(content))); err != nil {
		t.Error(err)
	}
	if err := checkTree(bytes.NewReader(content), int64(len(content)-1)); err == nil {
		t.Error("a file that is a byte too short is accepted")
	}
}

// freelistFile is the content of a database with a page that lists free ones, and where
// that page is.
func freelistFile(t *testing.T) (content []byte, freelist int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "freelist")
	db, err := bolt.Open(path, 0o600, &bolt.Options{PageSize: boltPageBytesMin})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if err := db.Update(func(tx *bolt.Tx) error {
			bucket, err := tx.CreateBucketIfNotExists(metaBucket)
			if err != nil {
				return err
			}
			key := sequenceKey(uint64(i))
			return bucket.Put(key[:], make([]byte, 300))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if content, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	meta, err := readMeta(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	return content, int(meta.freelist) * boltPageBytesMin
}

// A list of free pages that has one in it which is in use would have it overwritten, long
// after the file was opened.
func TestFreePagesAreFree(t *testing.T) {
	content, freelist := freelistFile(t)
	if err := checkTree(bytes.NewReader(content), int64(len(content))); err != nil {
		t.Fatal(err)
	}
	count := int(binary.NativeEndian.Uint16(content[freelist+10:]))
	if count < 2 {
		t.Fatalf("%d free pages; the test needs more", count)
	}
	first := freelist + boltHeaderBytes
	meta, err := readMeta(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		t.Fatal(err)
	}
	for name, damage := range map[string]func(content []byte){
		"a page of the tree":    func(c []byte) { binary.NativeEndian.PutUint64(c[first:], meta.root) },
		"the list itself":       func(c []byte) { binary.NativeEndian.PutUint64(c[first:], meta.freelist) },
		"a meta page":           func(c []byte) { binary.NativeEndian.PutUint64(c[first:], 1) },
		"a page beyond the end": func(c []byte) { binary.NativeEndian.PutUint64(c[first+8*(count-1):], meta.pages) },
		"one page twice":        func(c []byte) { copy(c[first+8:first+16], c[first:first+8]) },
		"more than there are":   func(c []byte) { binary.NativeEndian.PutUint16(c[freelist+10:], 0xfffe) },
		"a page of zeros":       func(c []byte) { clear(c[freelist : freelist+boltPageBytesMin]) },
	} {
		damaged := bytes.Clone(content)
		damage(damaged)
		if err := checkTree(bytes.NewReader(damaged), int64(len(damaged))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bbolt goes by the newer meta page that is whole, whatever it says. One that makes no
// sense must not have the other one looked at in its place.
func TestMetaPagesThatAreWholeAndMakeNoSense(t *testing.T) {
	for name, damage := range map[string]func(meta []byte){
		"the root beyond the end":       func(m []byte) { binary.NativeEndian.PutUint64(m[16:], 1<<40) },
		"the root a meta page":          func(m []byte) { binary.NativeEndian.PutUint64(m[16:], 1) },
		"no root":                       func(m []byte) { binary.NativeEndian.PutUint64(m[16:], 0) },
		"fewer pages than the root":     func(m []byte) { binary.NativeEndian.PutUint64(m[40:], 2) },
		"more pages than there are":     func(m []byte) { binary.NativeEndian.PutUint64(m[40:], 1<<50) },
		"no page at all":                func(m []byte) { binary.NativeEndian.PutUint64(m[40:], 0) },
		"pages of no bytes":             func(m []byte) { binary.NativeEndian.PutUint32(m[8:], 0) },
		"pages of 512 bytes":            func(m []byte) { binary.NativeEndian.PutUint32(m[8:], 512) },
		"pages of another size":         func(m []byte) { binary.NativeEndian.PutUint32(m[8:], 2048) },
		"pages of no power of two":      func(m []byte) { binary.NativeEndian.PutUint32(m[8:], 1025) },
		"the last transaction there is": func(m []byte) { binary.NativeEndian.PutUint64(m[48:], math.MaxUint64) },
	} {
		for page := range 2 {
			content := smallFile(t)
			meta := content[page*boltPageBytesMin+boltHeaderBytes:][:boltMetaBytes]
			damage(meta)
			if binary.NativeEndian.Uint64(meta[48:]) < boltTxidMax {
				binary.NativeEndian.PutUint64(meta[48:], 1000) // the newer one
			}
			sealMeta(meta)
			if err := checkTree(bytes.NewReader(content), int64(len(content))); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s in meta page %d: %v", name, page, err)
			}
		}
	}
}

// A small bucket lies within the page that names it, as a page of its own, which is looked
// at like any other: bbolt would read as far as it says.
func TestBucketsWithinAPage(t *testing.T) {
	const flags, count, element = 8, 10, boltHeaderBytes // of the page that the bucket is
	for name, damage := range map[string]func(page []byte){
		"a page of another kind":      func(p []byte) { p[flags] = boltBranchFlag },
		"a page of no kind":           func(p []byte) { p[flags] = 0 },
		"more entries than there are": func(p []byte) { binary.NativeEndian.PutUint16(p[count:], 0xffff) },
		"one entry more":              func(p []byte) { binary.NativeEndian.PutUint16(p[count:], 2) },
		"an entry elsewhere":          func(p []byte) { binary.NativeEndian.PutUint32(p[element+4:], 1<<31) },
		"a long key":                  func(p []byte) { binary.NativeEndian.PutUint32(p[element+8:], 1<<31) },
		"a long value":                func(p []byte) { binary.NativeEndian.PutUint32(p[element+12:], 1<<31) },
		"a value a byte too long":     func(p []byte) { binary.NativeEndian.PutUint32(p[element+12:], 101) },
		"a bucket within":             func(p []byte) { p[element] = boltBucketElement },
	} {
		content := smallFile(t)
		meta, err := readMeta(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			t.Fatal(err)
		}
		root := content[int64(meta.root)*meta.pageBytes:][:meta.pageBytes]
		bucket := root[bytes.Index(root, metaBucket)+len(metaBucket):]
		if binary.NativeEndian.Uint64(bucket) != 0 || binary.NativeEndian.Uint16(bucket[boltBucketBytes+count:]) != 1 {
			t.Fatal("the bucket with one entry lies elsewhere")
		}
		damage(bucket[boltBucketBytes:])
		if err := checkTree(bytes.NewReader(content), int64(len(content))); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// sealMeta puts the right checksum behind a meta page's content.
func sealMeta(meta []byte) {
	sum := fnv.New64a()
	_, _ = sum.Write(meta[:boltMetaBytes-8])
	binary.NativeEndian.PutUint64(meta[boltMetaBytes-8:], sum.Sum64())
}

// FuzzCheckPages looks for pages that the check itself falls over. Whatever it is
// given, it ends with an answer.
func FuzzCheckPages(f *testing.F) {
	content := smallFile(f)
	f.Add(uint32(0), []byte{0})
	f.Add(uint32(3*boltPageBytesMin+8), []byte{1, 0, 0xff, 0xff})
	f.Add(uint32(5*boltPageBytesMin+12), []byte{9})
	f.Fuzz(func(_ *testing.T, at uint32, patch []byte) {
		changed := bytes.Clone(content)
		copy(changed[int(at)%len(changed):], patch)
		for page := range 2 { // else most changes of a meta page end at its checksum
			sealMeta(changed[page*boltPageBytesMin+boltHeaderBytes:][:boltMetaBytes])
		}
		_ = checkTree(bytes.NewReader(changed), int64(len(changed)))
	})
}
