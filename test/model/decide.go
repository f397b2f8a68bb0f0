package model

import (
	"bytes"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Shard is the history of all identities of one shard.
type Shard struct {
	counter uint64
	history map[admission.Identity][]event
}

// New returns a shard in which nothing has happened yet.
func New() *Shard { return NewAt(0) }

// NewAt returns one of which nothing is known but the last number that it gave out.
func NewAt(counter uint64) *Shard {
	return &Shard{counter: counter, history: map[admission.Identity][]event{}}
}

// Verdict is an answer that the contract allows, and what it leads to.
type Verdict struct {
	Answer admission.Answer
	// LateOpen and RepeatedOpen say that the contract does not fix that field.
	LateOpen, RepeatedOpen bool

	on    admission.Identity
	event *event
}

// Changes reports whether the verdict changes the record.
func (v Verdict) Changes() bool { return v.event != nil }

// Counter is the last number that was given out.
func (s *Shard) Counter() uint64 { return s.counter }

// Clone returns a copy with a life of its own.
func (s *Shard) Clone() *Shard {
	c := &Shard{counter: s.counter, history: make(map[admission.Identity][]event, len(s.history))}
	for id, h := range s.history {
		c.history[id] = h[:len(h):len(h)]
	}
	return c
}

// Adopt makes the verdict come true.
func (s *Shard) Adopt(v Verdict) {
	if v.event == nil {
		return
	}
	s.counter = max(s.counter, v.event.first, v.event.second)
	s.history[v.on] = append(s.history[v.on], *v.event)
}

// Decide returns every answer that the contract allows, the most careful first. The
// command is valid; records is how many records its namespace has.
func (s *Shard) Decide(at admission.Instant, command admission.Command, records uint64) []Verdict {
	now := standingAt(s.history[command.On()], at.Now)
	var verdicts []Verdict
	switch c := command.(type) {
	case admission.Reserve:
		verdicts = s.reserve(now, at, c, records)
	case admission.Commit:
		verdicts = s.commit(now, at, c)
	case admission.Release:
		verdicts = s.release(now, at, c)
	case admission.Extend:
		verdicts = s.extend(now, at, c)
	case admission.Resolve:
		verdicts = s.resolve(now, at, c)
	case admission.Purge:
		verdicts = s.purge(now, at, c)
	default:
		panic("model: an unknown command")
	}
	for i := range verdicts {
		verdicts[i].on = command.On()
	}
	return verdicts
}

func refuse(reasons ...admission.Reason) []Verdict {
	var all []Verdict
	for _, reason := range reasons {
		all = append(all, Verdict{Answer: admission.Answer{Refusal: reason}})
	}
	return all
}

func one(answer admission.Answer) []Verdict { return []Verdict{{Answer: answer}} }

// Checked in this order: still wanted, fingerprint, the attempt that holds it,
// committed, in doubt, ended attempt, pending, free.
func (s *Shard) reserve(now standing, at admission.Instant, c admission.Reserve, records uint64) []Verdict {
	if at.Now >= c.WantedUntil {
		return refuse(admission.DeadlineExceeded)
	}
	compared := now.state != admission.StateNone && now.state != admission.StateReleased
	if compared && !bytes.Equal(now.grant.reserve.Fingerprint, c.Fingerprint) {
		return refuse(admission.FingerprintMismatch)
	}
	holder := now.grant.reserve
	if now.state == admission.StatePending && holder.Attempt == c.Attempt {
		return one(now.owned(true))
	}
	if now.state == admission.StateCommitted {
		return one(admission.Answer{Outcome: admission.OutcomeCommitted, Since: now.last.at.Now, Deadline: now.over, Response: now.last.response})
	}
	if now.state == admission.StateInDoubt {
		return one(admission.Answer{Outcome: admission.OutcomeInDoubt, Owner: holder.Owner, Since: now.grant.at.Now, Deadline: admission.Never})
	}
	var verdicts []Verdict
	switch recall(s.history[c.Identity], c.Attempt, at.Now) {
	case remembered:
		return refuse(admission.AttemptEnded)
	case forgivable:
		verdicts = refuse(admission.AttemptEnded)
	}
	if now.state == admission.StatePending {
		return append(verdicts, one(admission.Answer{Outcome: admission.OutcomePending, Attempt: now.attempt,
			Owner: holder.Owner, Since: now.grant.at.Now, Deadline: now.deadline})...)
	}
	if now.state == admission.StateNone {
		var full []Verdict
		if c.StorageFull {
			full = refuse(admission.StorageFull)
		}
		if c.RecordsMax > 0 && records >= c.RecordsMax {
			full = append(full, refuse(admission.QuotaExceeded)...)
		}
		if full != nil {
			return append(verdicts, full...)
		}
	}
	grant := &event{kind: granted, at: at, first: s.counter + 1, second: s.counter + 2,
		reserve: c, deadline: plus(at.Now, c.PendingTTL)}
	history := append(append([]event(nil), s.history[c.Identity]...), *grant)
	return append(verdicts, Verdict{Answer: standingAt(history, at.Now).owned(false), event: grant})
}

// owned is what the owner of a pending reservation is told.
func (s standing) owned(repeated bool) admission.Answer {
	return admission.Answer{
		Outcome:  admission.OutcomeGranted,
		Repeated: repeated,
		Token:    admission.Token{Fence: s.grant.first, Attempt: s.grant.reserve.Attempt},
		Fence:    s.grant.first,
		Attempt:  s.attempt,
		Previous: s.previous,
		Deadline: s.deadline,
	}
}

// stranger says why a token does not own what stands.
func (s standing) stranger(token admission.Token) admission.Reason {
	if s.state == admission.StateNone {
		return admission.ReservationNotFound
	}
	if token.Fence != s.grant.first || token.Attempt != s.grant.reserve.Attempt {
		return admission.ReservationLost
	}
	return admission.None
}

func (s *Shard) commit(now standing, at admission.Instant, c admission.Commit) []Verdict {
	if reason := now.stranger(c.Token); reason != admission.None {
		return refuse(reason)
	}
	late := now.state == admission.StateLapsed || now.state == admission.StateInDoubt
	switch now.state {
	case admission.StateReleased:
		return refuse(admission.AlreadyReleased)
	case admission.StateCommitted:
		if now.last.response.Hash != c.Response.Hash {
			return refuse(admission.CommitConflict)
		}
		return []Verdict{{
			Answer:   admission.Answer{Repeated: true, Late: now.last.late, Deadline: now.over},
			LateOpen: now.last.kind == settledApplied,
		}}
	}
	e := &event{kind: committed, at: at, first: s.counter + 1, response: c.Response, late: late, retention: c.Retention}
	if c.Retention == 0 {
		e.retention = now.grant.reserve.Retention
	}
	return []Verdict{{Answer: admission.Answer{Late: late, Deadline: plus(at.Now, e.retention)}, event: e}}
}

func (s *Shard) release(now standing, at admission.Instant, c admission.Release) []Verdict {
	if reason := now.stranger(c.Token); reason != admission.None {
		return refuse(reason)
	}
	late := now.state == admission.StateLapsed || now.state == admission.StateInDoubt
	switch now.state {
	case admission.StateCommitted:
		return refuse(admission.AlreadyCommitted)
	case admission.StateReleased:
		return []Verdict{{
			Answer:   admission.Answer{Repeated: true, Late: now.last.late},
			LateOpen: now.last.kind == settledNotApplied,
		}}
	}
	return []Verdict{{Answer: admission.Answer{Late: late}, event: &event{kind: released, at: at,
		first: s.counter + 1, late: late, reason: c.Reason, retention: now.grant.reserve.Retention}}}
}

func (s *Shard) extend(now standing, at admission.Instant, c admission.Extend) []Verdict {
	if reason := now.stranger(c.Token); reason != admission.None {
		return refuse(reason)
	}
	switch now.state {
	case admission.StateCommitted:
		return refuse(admission.AlreadyCommitted)
	case admission.StateReleased:
		return refuse(admission.AlreadyReleased)
	case admission.StateInDoubt:
		return refuse(admission.ReservationLapsed)
	}
	ttl := c.PendingTTL
	if ttl == 0 {
		ttl = now.grant.reserve.PendingTTL
	}
	deadline := max(now.deadline, min(plus(at.Now, ttl), plus(now.grant.at.Now, c.Span)))
	if deadline <= at.Now {
		return refuse(admission.ReservationLapsed) // the span is over, nothing is left
	}
	if deadline == now.deadline {
		return []Verdict{{Answer: admission.Answer{Deadline: deadline}, RepeatedOpen: true}}
	}
	return []Verdict{{Answer: admission.Answer{Deadline: deadline}, event: &event{kind: extended, at: at,
		first: s.counter + 1, second: s.counter + 2, deadline: deadline}}}
}

// Checked: none, settled from this revision, revision, state.
func (s *Shard) resolve(now standing, at admission.Instant, c admission.Resolve) []Verdict {
	if now.state == admission.StateNone {
		return refuse(admission.ReservationNotFound)
	}
	applied := now.last.kind == settledApplied
	if (applied || now.last.kind == settledNotApplied) && now.last.from == c.Revision {
		if applied != c.Applied || applied && now.last.response.Hash != c.Response.Hash {
			return refuse(admission.NotInDoubt)
		}
		return one(admission.Answer{Repeated: true})
	}
	if now.revision != c.Revision {
		return refuse(admission.RevisionMismatch)
	}
	if now.state != admission.StateInDoubt && now.state != admission.StateLapsed {
		return refuse(admission.NotInDoubt)
	}
	e := &event{kind: settledNotApplied, at: at, first: s.counter + 1, from: c.Revision,
		reason: c.Note, retention: now.grant.reserve.Retention}
	if c.Applied {
		e.kind, e.reason, e.response = settledApplied, "", c.Response
	}
	return []Verdict{{Answer: admission.Answer{}, event: e}}
}

// Checked: gone, revision, state.
func (s *Shard) purge(now standing, at admission.Instant, c admission.Purge) []Verdict {
	if now.state == admission.StateNone {
		return one(admission.Answer{Repeated: true})
	}
	if c.Fence != 0 {
		// Only a PENDING record may be named by its fence, and only by force.
		if c.Fence != now.grant.first {
			return refuse(admission.RevisionMismatch)
		}
		if now.state != admission.StatePending {
			return refuse(admission.RevisionMismatch, admission.NotPurgeable)
		}
	} else if c.Revision != now.revision {
		return refuse(admission.RevisionMismatch)
	}
	if !c.Force && (now.state == admission.StatePending || now.state == admission.StateInDoubt) {
		return refuse(admission.NotPurgeable)
	}
	return []Verdict{{Answer: admission.Answer{}, event: &event{kind: purged, at: at}}}
}

// Seen is what Get shows.
type Seen struct {
	State                admission.State
	Fence, Revision      uint64
	Attempt              uint32
	Fingerprint          []byte
	OnLapse              admission.OnLapse
	PendingTTL           time.Duration
	Owner                string
	GrantedAt            admission.Time
	PendingDeadline      admission.Time
	Over                 admission.Time // when the record is gone
	CreatedWall, Started int64
	Committed            int64 // 0 unless committed
	Reason               string
	Response             admission.Response
	Previous             admission.Previous
}

// Get returns what everybody may know of an identity; false where there is nothing.
func (s *Shard) Get(id admission.Identity, now admission.Time) (Seen, bool) {
	stands := standingAt(s.history[id], now)
	if stands.state == admission.StateNone {
		return Seen{}, false
	}
	seen := Seen{
		State:           stands.state,
		Fence:           stands.grant.first,
		Revision:        stands.revision,
		Attempt:         stands.attempt,
		Fingerprint:     stands.grant.reserve.Fingerprint,
		OnLapse:         stands.grant.reserve.OnLapse,
		PendingTTL:      stands.grant.reserve.PendingTTL,
		Owner:           stands.grant.reserve.Owner,
		GrantedAt:       stands.grant.at.Now,
		PendingDeadline: stands.deadline,
		Over:            stands.over,
		CreatedWall:     stands.createdWall,
		Started:         stands.grant.at.WallNanos,
		Previous:        stands.previous,
	}
	switch stands.state {
	case admission.StateCommitted:
		seen.Committed = stands.last.at.WallNanos
		seen.Response = stands.last.response
	case admission.StateReleased:
		seen.Reason = stands.last.reason
	}
	return seen, true
}

// Describes reports whether the answer is the verdict's, as far as the contract
// fixes it.
func (v Verdict) Describes(command admission.Command, got admission.Answer) bool {
	want := v.Answer
	if want.Refusal != admission.None {
		return got.Refusal == want.Refusal
	}
	if v.LateOpen {
		got.Late = want.Late
	}
	if v.RepeatedOpen {
		got.Repeated = want.Repeated
	}
	switch command.(type) {
	case admission.Reserve:
		if want.Outcome == admission.OutcomeGranted {
			got.Since = want.Since // nobody is told the age of an own reservation
		}
	case admission.Release:
		got.Deadline = want.Deadline
	case admission.Resolve:
		got.Deadline, got.Late = want.Deadline, want.Late
	}
	return got.Refusal == want.Refusal &&
		got.Outcome == want.Outcome &&
		got.Repeated == want.Repeated &&
		got.Late == want.Late &&
		got.Token == want.Token &&
		got.Fence == want.Fence &&
		got.Previous == want.Previous &&
		got.Attempt == want.Attempt &&
		got.Owner == want.Owner &&
		got.Since == want.Since &&
		got.Deadline == want.Deadline &&
		got.Response.Hash == want.Response.Hash &&
		got.Response.Bytes == want.Response.Bytes
}
