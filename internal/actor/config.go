package actor

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/store"
)

// Group is what an actor needs of its shard's Raft group.
type Group interface {
	// Propose hands an encoded entry to Raft. The response of the future is the
	// FSM's *raftfsm.Result.
	Propose(entry []byte, enqueueWithin time.Duration) raft.ApplyFuture
	// Leadership signals that this replica has gained or lost leadership.
	Leadership() <-chan bool
	IsLeader() bool
	Term() uint64
	// AnswerTerm says for entries of which term the FSM reads responses for answers.
	AnswerTerm(term uint64)
	// Check returns what this replica's state has come to, for the next entry.
	Check() raftfsm.Check
	// Confirmed reports whether a majority, this replica included, has answered
	// with success something of this term that was sent after since.
	Confirmed(term uint64, since time.Time) bool
	// Kick asks for such a round; Acknowledged signals that an answer has come.
	Kick()
	Acknowledged() <-chan struct{}
	TransferLeadership(to raft.ServerID) error
}

// Config is what an actor is made of, and its bounds.
type Config struct {
	Group  Group
	Store  *store.Store
	Logger *slog.Logger

	MailboxCommandsMax int   // calls waiting to be decided; more are ErrOverloaded
	MailboxBytesMax    int64 // their commands' bytes
	EntryBytesMax      int   // of one log entry, unless a single command is larger
	EntryCommandsMax   int   // in one log entry
	ProposalsMax       int   // entries in flight
	AnswerBytesMax     int64 // responses read for answers that are not given out yet
	WaitersMax         int   // parked calls of the shard; more are ErrOverloaded
	WaitersPerKeyMax   int   // parked calls of one identity
	GatheredBytesMax   int64 // what the store may have yet to write before calls are ErrOverloaded

	// LingerMax is how long an entry waits for the end of the one before it.
	LingerMax time.Duration
	// EnqueueWithin bounds how long Raft's own queue may hold up an entry.
	EnqueueWithin time.Duration
	// ProposalWithin is how long callers wait for an entry, before the outcome is unknown.
	ProposalWithin time.Duration
	// ConfirmWithin is how long an answer without an entry may take to be confirmed.
	ConfirmWithin time.Duration
}

// Default returns the bounds of the contract. Group, Store and Logger are the caller's.
func Default() Config {
	return Config{
		MailboxCommandsMax: 4096,
		MailboxBytesMax:    64 << 20,
		EntryBytesMax:      1 << 20,
		EntryCommandsMax:   1024,
		ProposalsMax:       8,
		AnswerBytesMax:     64 << 20,
		WaitersMax:         1024,
		WaitersPerKeyMax:   256,
		GatheredBytesMax:   48 << 20,
		LingerMax:          10 * time.Millisecond,
		EnqueueWithin:      2 * time.Second,
		ProposalWithin:     10 * time.Second,
		ConfirmWithin:      time.Second,
	}
}

// Validate returns an error that names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Group == nil, c.Store == nil, c.Logger == nil:
		return fmt.Errorf("actor: Group, Store and Logger are required")
	case c.LingerMax < 0:
		return fmt.Errorf("actor: LingerMax is %v, it must not be negative", c.LingerMax)
	case c.EnqueueWithin <= 0, c.ProposalWithin <= 0, c.ConfirmWithin <= 0:
		return fmt.Errorf("actor: EnqueueWithin, ProposalWithin and ConfirmWithin must be positive")
	}
	for name, value := range map[string]int64{
		"MailboxCommandsMax": int64(c.MailboxCommandsMax),
		"MailboxBytesMax":    c.MailboxBytesMax,
		"EntryBytesMax":      int64(c.EntryBytesMax),
		"EntryCommandsMax":   int64(c.EntryCommandsMax),
		"ProposalsMax":       int64(c.ProposalsMax),
		"AnswerBytesMax":     c.AnswerBytesMax,
		"WaitersMax":         int64(c.WaitersMax),
		"WaitersPerKeyMax":   int64(c.WaitersPerKeyMax),
		"GatheredBytesMax":   c.GatheredBytesMax,
	} {
		if value <= 0 {
			return fmt.Errorf("actor: %s is %d, it must be positive", name, value)
		}
	}
	return nil
}
