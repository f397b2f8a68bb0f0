package store

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
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
			for i := range map[string]int{"records": 40, "responses": 3}[string(name)] {
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
			meta := changed[page*boltPageBytesMin+boltHeaderBytes:][:boltMetaBytes]
			sum := fnv.New64a()
			_, _ = sum.Write(meta[:boltMetaBytes-8])
			binary.NativeEndian.PutUint64(meta[boltMetaBytes-8:], sum.Sum64())
		}
		_ = checkTree(bytes.NewReader(changed), int64(len(changed)))
	})
}
