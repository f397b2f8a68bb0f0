package raftfsm

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	raftlogv1 "github.com/atmostonce/coordinator/gen/coordinator/raftlog/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

// entryVersion is the byte in front of every entry that is written today. Its
// message is coordinator.raftlog.v1.Entry.
const entryVersion = 1

// ErrEntry reports bytes that are no entry of a version this program knows. It is
// wrapped with what is wrong.
var ErrEntry = errors.New("malformed log entry")

// Entry is what a leader proposes: a batch of commands, a tick (no commands), or
// the start of its leadership.
type Entry struct {
	// Term is the Raft term in which the leader decided to propose the entry.
	Term uint64
	// Elapsed is the leader's monotonic time since it took its base, which it did
	// after its LeaderStart had been applied. It is taken after the last command of
	// the batch was received. 0 to [ElapsedMax].
	Elapsed time.Duration
	// WallNanos is the leader's wall clock in nanoseconds since 1970 UTC, for people.
	WallNanos int64
	// LeaderStart notes the term and the clock's value. Such an entry has neither
	// commands nor a Reclaim.
	LeaderStart bool
	// Reclaim is the number of due records, after the commands, that are written
	// down as what time has made of them. 0 to [ReclaimMax].
	Reclaim int
	// Commands are decided one after another.
	Commands []admission.Command
	// Check is what the leader's state came to; the zero value is none. See
	// [Group.Check].
	Check Check
}

// Bounds of an entry. What one may do must be bounded; and no term lasts so long
// that its clock could come near the end of time.
const (
	ReclaimMax = 1 << 20
	ElapsedMax = 10 * 365 * 24 * time.Hour
)

// Encode returns the entry's bytes. The error is a program's, not a caller's: a
// command of an unknown kind, or an entry that is two things at once.
func (e *Entry) Encode() ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, err
	}
	message := &raftlogv1.Entry{
		Term:        e.Term,
		ElapsedNs:   int64(e.Elapsed),
		WallNs:      e.WallNanos,
		LeaderStart: e.LeaderStart,
		ReclaimMax:  uint32(e.Reclaim),
	}
	if e.Check != (Check{}) {
		message.Check = &raftlogv1.Check{Index: e.Check.Index, Digest: e.Check.Digest, Version: e.Check.Version}
	}
	if len(e.Commands) > 0 {
		message.Commands = make([]*raftlogv1.Command, len(e.Commands))
	}
	for i, command := range e.Commands {
		encoded, err := encodeCommand(command)
		if err != nil {
			return nil, fmt.Errorf("command %d: %w", i, err)
		}
		message.Commands[i] = encoded
	}
	size := proto.Size(message)
	dst := make([]byte, 1, 1+size)
	dst[0] = entryVersion
	return proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(dst, message)
}

// DecodeEntry is the inverse of [Entry.Encode]. It accepts nothing that a version
// known to this program would not have written: who does not understand an entry
// must stop, and not apply what is left of it.
func DecodeEntry(src []byte) (*Entry, error) {
	if len(src) == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrEntry)
	}
	if src[0] != entryVersion {
		return nil, fmt.Errorf("%w: version %d, this program knows version %d", ErrEntry, src[0], entryVersion)
	}
	message := &raftlogv1.Entry{}
	if err := proto.Unmarshal(src[1:], message); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrEntry, err)
	}
	if err := known(message); err != nil {
		return nil, err
	}
	e := &Entry{
		Term:        message.Term,
		Elapsed:     time.Duration(message.ElapsedNs),
		WallNanos:   message.WallNs,
		LeaderStart: message.LeaderStart,
		Reclaim:     int(message.ReclaimMax),
	}
	if check := message.Check; check != nil {
		if err := known(check); err != nil {
			return nil, err
		}
		e.Check = Check{Index: check.Index, Digest: check.Digest, Version: check.Version}
	}
	if len(message.Commands) > 0 {
		e.Commands = make([]admission.Command, len(message.Commands))
	}
	for i, encoded := range message.Commands {
		command, err := decodeCommand(encoded)
		if err != nil {
			return nil, fmt.Errorf("command %d: %w", i, err)
		}
		e.Commands[i] = command
	}
	if err := e.check(); err != nil {
		return nil, err
	}
	return e, nil
}

// check holds what both directions ask of an entry.
func (e *Entry) check() error {
	switch {
	case e.Elapsed < 0 || e.Elapsed > ElapsedMax:
		return fmt.Errorf("%w: elapsed time of %v", ErrEntry, e.Elapsed)
	case e.Reclaim < 0 || e.Reclaim > ReclaimMax:
		return fmt.Errorf("%w: a reclaim of %d records, the limit is %d", ErrEntry, e.Reclaim, ReclaimMax)
	case e.Check != (Check{}) && (e.Check.Index == 0 || e.Check.Version == 0):
		return fmt.Errorf("%w: a check of index %d in version %d", ErrEntry, e.Check.Index, e.Check.Version)
	case e.LeaderStart && (len(e.Commands) > 0 || e.Reclaim > 0 || e.Elapsed > 0):
		return fmt.Errorf("%w: the start of a leader with something else to do", ErrEntry)
	}
	return nil
}
