package admission

import "time"

// Command is one of [Reserve], [Commit], [Release], [Extend], [Resolve] and [Purge].
//
// The leader fills every field before it proposes: defaults and a node's settings
// are resolved by then, so that applying depends on the log alone. Validate is
// called at the edge, where the caller can be told; [Decide] relies on it.
type Command interface {
	// On returns the identity of the record that the command is about.
	On() Identity
	// Validate returns the first argument that is out of bounds, or nil.
	Validate() *Violation

	decide(view View, at Instant) Decision
}

// View is what a shard knows of one identity when a command is applied.
type View struct {
	// Record as it is stored, tombstones included; nil where there is none.
	Record *Record
	// Counter is the last number that the shard gave out, as a fence or a revision.
	Counter uint64
	// NamespaceRecords counts the shard's records of the identity's namespace.
	NamespaceRecords uint64
}

// Decision is what a command comes to: an answer, and its effect as data.
type Decision struct {
	Answer Answer
	// Record is what is stored from now on, and nil where nothing changes.
	Record *Record
	// Deleted says that no record is stored from now on. Record is nil then.
	Deleted bool
	// Counter is the shard's counter from now on.
	Counter uint64
}

// Outcome is how a Reserve that was not refused ended.
type Outcome uint8

// The four outcomes of the contract. The answers to other commands have
// [OutcomeNone].
const (
	OutcomeNone Outcome = iota
	OutcomeGranted
	OutcomePending
	OutcomeCommitted
	OutcomeInDoubt
)

var outcomeNames = [...]string{"none", "granted", "pending", "committed", "in_doubt"}

// String returns the contract's name of the outcome.
func (o Outcome) String() string { return outcomeNames[o] }

// Answer is what the caller is told. Times are logical; whoever passes the answer
// on turns them into what remains at that moment.
type Answer struct {
	// Refusal is [None] where the command was carried out.
	Refusal Reason
	// Outcome is set for Reserve.
	Outcome Outcome
	// Repeated says that an earlier delivery of the command had done it all.
	Repeated bool
	// Late says that a commit or release came after the pending deadline.
	Late bool

	// Token, Fence and Previous are for the owner: only a granted Reserve has them.
	Token    Token
	Fence    uint64
	Previous Previous
	Attempt  uint32 // granted, pending
	Owner    string // pending, in doubt

	// Since is what an age is reckoned from: the grant of a pending attempt or one
	// in doubt, the commit of a committed one.
	Since Time
	// Deadline is the end of the present window: of the reservation (granted,
	// pending, Extend) or of the retention (committed, Commit). [Never] for none.
	Deadline Time

	// Response is what was committed. Its Stored part is filled in by whoever has
	// read it from the store.
	Response Response
}

// Reserve asks to be the one that is admitted.
type Reserve struct {
	Identity    Identity
	Attempt     AttemptID
	Fingerprint []byte
	PendingTTL  time.Duration
	Retention   time.Duration
	OnLapse     OnLapse
	Owner       string

	// WantedUntil is when the caller has stopped waiting for the answer: a grant
	// from then on would be one that nobody uses.
	WantedUntil Time
	// RecordsMax refuses a new record in a namespace that has as many; 0 is no limit.
	RecordsMax uint64
	// StorageFull refuses a new record because the leader is short of disk space.
	StorageFull bool
}

// Commit says that it is done, and how.
type Commit struct {
	Identity  Identity
	Token     Token
	Response  Response
	Retention time.Duration // 0: the record's
}

// Release says that nothing happened and nothing will.
type Release struct {
	Identity Identity
	Token    Token
	Reason   string
}

// Extend asks for more time.
type Extend struct {
	Identity   Identity
	Token      Token
	PendingTTL time.Duration // 0: the record's
	// Span is how long after its grant an attempt's deadline may lie.
	Span time.Duration
}

// Resolve settles what is in doubt, or has lapsed, on the word of somebody who knows.
type Resolve struct {
	Identity Identity
	Revision uint64 // the one that was looked at
	Applied  bool
	Response Response // where Applied
	Note     string   // where not: becomes the release reason
}

// Purge forgets a record.
type Purge struct {
	Identity Identity
	Revision uint64 // the one that was looked at, or 0 where Fence is given
	Fence    uint64 // names a pending record by its grant; with Force only
	Force    bool
}

// On implements [Command].
func (c Reserve) On() Identity { return c.Identity }

// On implements [Command].
func (c Commit) On() Identity { return c.Identity }

// On implements [Command].
func (c Release) On() Identity { return c.Identity }

// On implements [Command].
func (c Extend) On() Identity { return c.Identity }

// On implements [Command].
func (c Resolve) On() Identity { return c.Identity }

// On implements [Command].
func (c Purge) On() Identity { return c.Identity }

// CheckWindow returns a violation of a window that is not between its limits.
func CheckWindow(field string, window, least, most time.Duration) *Violation {
	if window < least || window > most {
		return violation(field, "is %v, it must be from %v to %v", window, least, most)
	}
	return nil
}

// checkOptionalWindow lets 0 pass, which stands for the record's own.
func checkOptionalWindow(field string, window, least, most time.Duration) *Violation {
	if window == 0 {
		return nil
	}
	return CheckWindow(field, window, least, most)
}
