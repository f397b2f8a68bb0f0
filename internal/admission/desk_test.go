package admission_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// desk is one record, and a clock that only the test moves.
type desk struct {
	t   *testing.T
	k   *keeper
	id  admission.Identity
	now admission.Time
}

func newDesk(t *testing.T) *desk {
	return &desk{t: t, k: newKeeper(), id: admission.Identity{Namespace: "n", Principal: "p", Operation: "o", Key: "k"}}
}

// after lets time go by.
func (d *desk) after(passes time.Duration) { d.now = d.now.Add(passes) }

// do carries out a command and wants the given end.
func (d *desk) do(command admission.Command, want admission.Reason) admission.Answer {
	d.t.Helper()
	if v := command.Validate(); v != nil {
		d.t.Fatalf("%T is invalid: %v", command, v)
	}
	answer := d.k.Apply(admission.Instant{Now: d.now, WallNanos: int64(d.now) + 1}, command)
	if answer.Refusal != want {
		d.t.Fatalf("%T at %v: refused with %q, want %q", command, time.Duration(d.now), answer.Refusal, want)
	}
	return answer
}

// reserve is a Reserve of the record, its attempt named by a label.
func (d *desk) reserve(label string) admission.Reserve {
	return admission.Reserve{
		Identity: d.id, Attempt: attempt(label), WantedUntil: admission.Never,
		PendingTTL: admission.PendingTTLDefault, Retention: admission.RetentionDefault,
	}
}

// grant wants the attempt to be admitted and returns its token.
func (d *desk) grant(reserve admission.Reserve) admission.Token {
	d.t.Helper()
	answer := d.do(reserve, admission.None)
	if answer.Outcome != admission.OutcomeGranted || answer.Repeated {
		d.t.Fatalf("at %v: %v, want a grant", time.Duration(d.now), answer.Outcome)
	}
	return answer.Token
}

// refused wants a Reserve to be refused.
func (d *desk) refused(label string, want admission.Reason) {
	d.t.Helper()
	d.do(d.reserve(label), want)
}

func (d *desk) commit(token admission.Token, response byte) admission.Commit {
	return admission.Commit{Identity: d.id, Token: token, Response: responseOf(response)}
}

func (d *desk) release(token admission.Token) admission.Release {
	return admission.Release{Identity: d.id, Token: token, Reason: "r"}
}

func (d *desk) extend(token admission.Token, ttl time.Duration) admission.Extend {
	return admission.Extend{Identity: d.id, Token: token, PendingTTL: ttl, Span: admission.ExtendSpanDefault}
}

// see wants the record to be in a state, and returns it.
func (d *desk) see(want admission.State) *admission.Record {
	d.t.Helper()
	r := admission.Look(d.k.records[d.id], d.now)
	got := admission.StateNone
	if r != nil {
		got = r.State
	}
	if got != want {
		d.t.Fatalf("at %v: the record is %v, want %v", time.Duration(d.now), got, want)
	}
	return r
}

func attempt(label string) admission.AttemptID {
	var id admission.AttemptID
	copy(id[:], label)
	return id
}

func responseOf(n byte) admission.Response {
	return admission.Response{Hash: [32]byte{n}, Bytes: uint32(n), Stored: []byte{n}}
}

// limit is an argument at one of its limits.
type limit struct {
	name    string
	command admission.Command
	field   string // that is wrong; empty where nothing is
}

func checkLimits(t *testing.T, limits []limit) {
	t.Helper()
	for _, l := range limits {
		v := l.command.Validate()
		switch {
		case l.field == "" && v != nil:
			t.Errorf("%s: refused: %v", l.name, v)
		case l.field != "" && (v == nil || v.Field != l.field):
			t.Errorf("%s: %v, want a violation of %s", l.name, v, l.field)
		case v != nil && (v.Reason != admission.InvalidArgument && v.Reason != admission.ResponseTooLarge || v.Detail == ""):
			t.Errorf("%s: %+v says too little", l.name, v)
		}
	}
}

// Every command checks its identity first.
func TestCommandsCheckTheirIdentity(t *testing.T) {
	bad := admission.Identity{Namespace: "n"}
	for _, c := range []admission.Command{
		admission.Reserve{Identity: bad}, admission.Commit{Identity: bad}, admission.Release{Identity: bad},
		admission.Extend{Identity: bad}, admission.Resolve{Identity: bad}, admission.Purge{Identity: bad},
	} {
		checkLimits(t, []limit{{"an empty key", c, "identity.key"}})
		if c.On() != bad {
			t.Errorf("%T is on another identity", c)
		}
	}
}

func text(bytes int) string { return strings.Repeat("x", bytes) }

func fingerprint(size int) []byte { return bytes.Repeat([]byte{7}, size) }
