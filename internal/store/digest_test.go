package store

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// The digest says the same as the hash over everything: two states have one digest if
// and only if they are the same, whichever way their files came about.
func TestDigestIsOfTheState(t *testing.T) {
	flushed, other := testConfig(t), testConfig(t)
	a, b := mustOpen(t, flushed), mustOpen(t, other)
	byDigest := make(map[uint64][32]byte)
	byHash := make(map[[32]byte]uint64)
	look := func(step int) {
		t.Helper()
		digest, at := a.Digest()
		if same, there := b.Digest(); same != digest || there != at {
			t.Fatalf("step %d: digest %x at %v in one store, %x at %v in the other", step, digest, at, same, there)
		}
		hash, _ := stateHash(t, a)
		if before, ok := byDigest[digest]; ok && before != hash {
			t.Fatalf("step %d: two states have the digest %x", step, digest)
		}
		if before, ok := byHash[hash]; ok && before != digest {
			t.Fatalf("step %d: one state has had the digests %x and %x", step, before, digest)
		}
		byDigest[digest], byHash[hash] = hash, digest
	}
	look(-1)
	tokens := make(map[int]admission.Token)
	for step := range 120 {
		key := step % 20
		var command admission.Command
		switch {
		case step < 40:
			command = testReserve(step)
		case step < 60:
			command = admission.Commit{Identity: testIdentity(key), Token: tokens[key], Response: admission.Response{
				Hash: [32]byte{byte(step)}, Bytes: 3, Stored: make([]byte, 100*step),
			}}
		case step < 80:
			command = admission.Extend{Identity: testIdentity(20 + key), Token: tokens[20+key], PendingTTL: time.Hour}
		case step < 100:
			command = admission.Release{Identity: testIdentity(20 + key), Token: tokens[20+key]}
		default:
			command = admission.Purge{Identity: testIdentity(key)}
		}
		tokens[step] = update(t, a, command)[0].Token
		update(t, b, command)
		if step%17 == 0 { // one writes to its file, the other not yet
			if err := b.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		if step == 70 { // and one begins again from its file
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			b = mustOpen(t, other)
		}
		look(step)
	}
	if len(byDigest) < 70 {
		t.Errorf("only %d states: the test changes nothing", len(byDigest))
	}
}
