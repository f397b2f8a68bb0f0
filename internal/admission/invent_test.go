package admission_test

import (
	"encoding/binary"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// invent makes up a valid command, as likely as not one that comes too late, from
// the wrong owner, or for the second time.
func (w *world) invent() admission.Command {
	id := pick(w, w.identities...)
	switch w.choice.choose(13) {
	case 0, 1, 2, 3:
		return w.reserve(id)
	case 4, 5:
		return admission.Commit{Identity: id, Token: w.token(id), Response: w.response(),
			Retention: pick(w, 0, 0, time.Second, time.Hour, admission.RetentionMax)}
	case 6, 7:
		return admission.Release{Identity: id, Token: w.token(id), Reason: pick(w, "", "why", "because")}
	case 8, 9:
		return admission.Extend{Identity: id, Token: w.token(id), Span: pick(w, admission.ExtendSpanDefault, admission.ExtendSpanDefault, time.Minute, 0),
			PendingTTL: pick(w, 0, 0, 100*time.Millisecond, time.Minute, time.Hour, 24*time.Hour)}
	case 10, 11:
		c := admission.Resolve{Identity: id, Revision: w.revision(id), Note: pick(w, "", "looked")}
		if w.choice.choose(2) == 0 {
			c.Applied, c.Note, c.Response = true, "", w.response()
		}
		return c
	default:
		c := admission.Purge{Identity: id, Force: w.choice.choose(2) == 0}
		if c.Force && w.choice.choose(3) == 0 {
			c.Fence = w.token(id).Fence
		} else {
			c.Revision = w.revision(id)
		}
		return c
	}
}

func (w *world) reserve(id admission.Identity) admission.Reserve {
	c := admission.Reserve{
		Identity:    id,
		Attempt:     w.attempt(),
		PendingTTL:  pick(w, 100*time.Millisecond, time.Second, time.Minute, 11*time.Minute, 24*time.Hour),
		Retention:   pick(w, time.Second, time.Minute, 10*time.Minute, time.Hour, admission.RetentionMax),
		OnLapse:     pick(w, admission.Reopen, admission.Reopen, admission.Hold),
		Owner:       pick(w, "", "me", "you"),
		WantedUntil: admission.Never,
	}
	switch w.choice.choose(16) {
	case 0:
		c.Fingerprint = []byte{1}
	case 1:
		c.Fingerprint = []byte{2}
	case 2:
		c.Fingerprint = []byte{}
	case 3:
		c.WantedUntil = w.now + pick[admission.Time](w, -1, 0, 1)
	case 4:
		c.RecordsMax = uint64(pick(w, 1, 2, 3))
	case 5:
		c.StorageFull = true
	}
	return c
}

// attempt returns one of the latest ids as often as a new one.
func (w *world) attempt() admission.AttemptID {
	n := w.choice.choose(24)
	if n < len(w.attempts) && n < 12 {
		return w.attempts[len(w.attempts)-1-n]
	}
	var id admission.AttemptID
	binary.BigEndian.PutUint64(id[:], uint64(len(w.attempts)+1))
	w.attempts = append(w.attempts, id)
	return id
}

// token returns the latest owner's most of the time, else one that is stale, another
// record's, or nobody's.
func (w *world) token(id admission.Identity) admission.Token {
	kind := w.choice.choose(10)
	if kind == 0 {
		id = pick(w, w.identities...)
	}
	all := w.tokens[id]
	if len(all) == 0 {
		return admission.Token{Fence: 1 << 40}
	}
	token := all[len(all)-1]
	switch kind {
	case 1, 2:
		token = all[max(0, len(all)-1-w.choice.choose(4))]
	case 3:
		token.Attempt = w.attempt()
	case 4:
		token.Fence++
	}
	return token
}

// revision returns the present one most of the time, else an earlier one or another's.
func (w *world) revision(id admission.Identity) uint64 {
	kind := w.choice.choose(6)
	if kind == 0 {
		id = pick(w, w.identities...)
	}
	all := w.revisions[id]
	switch {
	case len(all) == 0:
		return 1 << 40
	case kind == 1:
		return all[len(all)-1] + 1
	case kind <= 3:
		return all[max(0, len(all)-1-w.choice.choose(4))]
	default:
		return all[len(all)-1]
	}
}

func (w *world) response() admission.Response {
	n := byte(w.choice.choose(3))
	return admission.Response{Hash: [32]byte{n + 1}, Bytes: uint32(n), Stored: []byte{n}}
}
