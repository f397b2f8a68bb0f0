package raftlog

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Every entry carries a link: a hash of itself and of the link before it, so of the
// whole log up to it. Raft takes two logs for the same up to an entry that has the same
// index and term in both, because one leader a term writes one entry an index. That is
// not so any more once a majority has been put back to older copies: the same term is
// then won a second time, by a leader that knows nothing of the first, and a replica
// that was not put back would keep its own entries, acknowledge the new ones, and hold
// another state than its leader for good. Where two links of one index and term differ,
// that has happened, and the replica stops.
//
// A link lies in the entry's extensions, which raft stores and sends along without a
// look. Its leader makes it; whoever receives it checks it against what it has itself.

// link is what an entry's extensions hold: how the hash came about, and the hash.
type link struct {
	kind linkKind
	hash uint64
}

type linkKind byte

const (
	// linkOn is a link to the entry before.
	linkOn linkKind = 1
	// linkAnew is a first link: the leader did not have the entry before, only the
	// state up to it, which it had installed.
	linkAnew linkKind = 2
)

const linkBytes = 1 + 8

var (
	// errLink says that an entry's link cannot be read, or is not that of the entry.
	errLink = errors.New("malformed link")
	// errContradiction says that two leaders of one term have written different logs.
	errContradiction = fmt.Errorf("%w: the leader's log is another one, although index and term are the same; "+
		"a majority has lost what it had acknowledged (were older copies of data directories put back?)", ErrDiverged)
)

// encode returns the extensions that hold the link.
func (l link) encode() []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, linkBytes+sealBytes), byte(l.kind)), l.hash)
}

func decodeLink(extensions []byte) (link, error) {
	if len(extensions) != linkBytes {
		return link{}, fmt.Errorf("%w: it has %d bytes, not %d", errLink, len(extensions), linkBytes)
	}
	l := link{kind: linkKind(extensions[0]), hash: binary.BigEndian.Uint64(extensions[1:])}
	if l.kind != linkOn && l.kind != linkAnew {
		return link{}, fmt.Errorf("%w: it is of kind %d", errLink, l.kind)
	}
	return l, nil
}

// hashAfter returns the hash of an entry behind one with the hash before: a number that
// changes with every bit of both (the finalizer of SplitMix64).
func hashAfter(before uint64, log *raft.Log) uint64 {
	z := before*0x9e3779b97f4a7c15 + uint64(contentChecksum(log))
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// chainEnd is the last entry of a log as the next one links to it. The zero value is
// the end of a log that has not begun.
type chainEnd struct {
	index uint64
	hash  uint64
}

// after returns the end behind a further entry, with that entry's link: what it carries
// where a leader sent it, a new one where this replica leads. It changes nothing.
func (e chainEnd) after(log *raft.Log) (chainEnd, link, error) {
	follows := log.Index == e.index+1
	if len(log.Extensions) == 0 {
		made := link{kind: linkOn, hash: hashAfter(e.hash, log)}
		if !follows {
			made = link{kind: linkAnew, hash: hashAfter(0, log)}
		}
		return chainEnd{index: log.Index, hash: made.hash}, made, nil
	}
	carried, err := decodeLink(log.Extensions)
	if err != nil {
		return e, link{}, err
	}
	switch {
	case carried.kind == linkAnew && carried.hash != hashAfter(0, log):
		return e, link{}, errLink
	case carried.kind == linkOn && follows && carried.hash != hashAfter(e.hash, log):
		return e, link{}, errContradiction
	}
	return chainEnd{index: log.Index, hash: carried.hash}, carried, nil
}

// CheckLink returns an error where an entry that a leader sent carries no link that can be read.
func CheckLink(sent *raft.Log) error {
	_, err := decodeLink(sent.Extensions)
	return err
}

// Contradicts returns an error where an entry that a leader sent is not the one that
// this replica has stored at its index in its term. It wraps [ErrDiverged] where two leaders
// of the term have written different logs.
func Contradicts(sent, stored *raft.Log) error {
	if sent.Term != stored.Term {
		return nil // raft decides between terms
	}
	carried, err := decodeLink(sent.Extensions)
	if err != nil {
		return err
	}
	own, err := decodeLink(stored.Extensions)
	if err != nil {
		return err
	}
	if carried != own || contentChecksum(sent) != contentChecksum(stored) {
		return errContradiction
	}
	return nil
}
