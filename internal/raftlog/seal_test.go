package raftlog

import (
	"bytes"
	"errors"
	"testing"
)

// Raft's term and vote are read as they were written, or not at all.
func TestADamagedVoteIsNotBelieved(t *testing.T) {
	l, err := Open(t.TempDir(), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	term, vote := []byte("CurrentTerm"), []byte("LastVoteCand")
	if n, err := l.GetUint64(term); n != 0 || err != nil {
		t.Errorf("before anything was written: %d, %v", n, err)
	}
	if err := errors.Join(l.SetUint64(term, 7), l.Set(vote, []byte("n2"))); err != nil {
		t.Fatal(err)
	}
	n, err := l.GetUint64(term)
	who, whoErr := l.Get(vote)
	if n != 7 || string(who) != "n2" || err != nil || whoErr != nil {
		t.Errorf("term %d, vote %q: %v", n, who, errors.Join(err, whoErr))
	}
	defer l.Close()
	beneath := l.WAL
	for _, key := range [][]byte{term, vote} {
		stored, err := beneath.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		for at := range stored {
			damaged := bytes.Clone(stored)
			damaged[at] ^= 1
			if err := beneath.Set(key, damaged); err != nil {
				t.Fatal(err)
			}
			if got, err := l.Get(key); !errors.Is(err, errDamaged) {
				t.Errorf("%s with byte %d damaged: %q, %v", key, at, got, err)
			}
		}
		// One in the place of the other.
		if err := beneath.Set(key, sealValue([]byte("another key"), []byte("n2"))); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Get(key); !errors.Is(err, errDamaged) {
			t.Errorf("%s: a value of another key: %v", key, err)
		}
		if err := beneath.Set(key, stored); err != nil {
			t.Fatal(err)
		}
	}
}
