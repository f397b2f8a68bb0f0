package rpc

import (
	"bufio"
	"math"
	"net/textproto"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// A window is the duration that was sent or an error, and nothing in between.
func TestWindowsAgainstDurationpb(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := &durationpb.Duration{
			Seconds: rapid.OneOf(rapid.Int64(), rapid.Int64Range(-3, 100_000)).Draw(t, "seconds"),
			Nanos:   rapid.OneOf(rapid.Int32(), rapid.Int32Range(-1, 1)).Draw(t, "nanos"),
		}
		got, err := decodeWindow("field", d, time.Hour, time.Second, 24*time.Hour)
		exact := d.AsDuration()
		valid := d.CheckValid() == nil && exact >= time.Second && exact <= 24*time.Hour
		if (err == nil) != valid || valid && got != exact {
			t.Fatalf("%v (%v) became %v, %v", d, d.CheckValid(), got, err)
		}
		if err != nil && reason.Of(err).Reason != reason.InvalidArgument {
			t.Fatalf("%v", err)
		}
	})
	if got, err := decodeWindow("field", nil, time.Hour, time.Second, time.Minute); err != nil || got != time.Hour {
		t.Errorf("absent: %v, %v", got, err)
	}
}

func TestAttemptsAreDrawnApart(t *testing.T) {
	seen := map[admission.AttemptID]bool{{}: true}
	for range 1000 {
		id, err := decodeAttempt(nil)
		if err != nil || seen[id] {
			t.Fatalf("%x was drawn before: %v", id, err)
		}
		seen[id] = true
	}
	given := []byte("sixteen bytes it")
	if id, err := decodeAttempt(given); err != nil || string(id[:]) != string(given) {
		t.Errorf("%x, %v", id, err)
	}
}

// Every state goes out and comes back in under its own name.
func TestStatesRoundTrip(t *testing.T) {
	for state := admission.StatePending; state < admission.States; state++ {
		encoded := encodeState(state)
		if encoded.String() != "STATE_"+state.String() {
			t.Errorf("%v became %v", state, encoded)
		}
		if back, err := decodeState(encoded); err != nil || back != state {
			t.Errorf("%v came back as %v, %v", state, back, err)
		}
	}
	if encodeState(admission.StateNone) != coordinatorv1.State_STATE_UNSPECIFIED {
		t.Error("none is a state")
	}
}

// Nothing that proves ownership is in what everybody may see.
func TestRecordsKeepTheirSecrets(t *testing.T) {
	secret := admission.AttemptID([]byte("SECRET-SECRET-SE"))
	shown := encodeRecord(&admission.Record{
		Identity: admission.Identity{Namespace: "n", Key: "k"}, State: admission.StatePending, Fence: 7, Holder: secret,
		Ended: []admission.EndedAttempt{{ID: secret}}, PendingDeadline: 10, GrantedAt: 5,
		CreatedWallNanos: math.MaxInt64, StartedWallNanos: -1,
	}, 8)
	token := admission.Token{Fence: 7, Attempt: secret}.String()
	for _, text := range []string{"SECRET", token} {
		if got := shown.String(); len(got) == 0 || strings.Contains(got, text) {
			t.Errorf("%s is shown: %s", text, got)
		}
	}
	if shown.GetRemaining().AsDuration() != 2 || shown.GetAge().AsDuration() != 3 {
		t.Errorf("remaining %v, age %v", shown.GetRemaining(), shown.GetAge())
	}
}

func TestRetryAfterIsWithinWhatRemains(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		age := time.Duration(rapid.Int64Range(0, int64(1000*time.Hour)).Draw(t, "age"))
		remaining := time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "remaining"))
		got := positive(retryAfter(age, remaining)).AsDuration()
		if got < 1 || got > max(1, remaining) || got > retryAfterMax {
			t.Fatalf("age %v, remaining %v: %v", age, remaining, got)
		}
	})
}

func TestSettings(t *testing.T) {
	if err := Default().Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Settings){
		"pending TTL":      func(s *Settings) { s.PendingTTLDefault = time.Millisecond },
		"retention":        func(s *Settings) { s.RetentionDefault = 31 * 24 * time.Hour },
		"extend span":      func(s *Settings) { s.ExtendSpan = time.Second },
		"response":         func(s *Settings) { s.ResponseBytesMax = 1<<20 + 1 },
		"no response":      func(s *Settings) { s.ResponseBytesMax = 0 },
		"compression":      func(s *Settings) { s.CompressFrom = -1 },
		"wanted":           func(s *Settings) { s.WantedForDefault = 0 },
		"leader":           func(s *Settings) { s.LeaderWait = -1 },
		"other nodes":      func(s *Settings) { s.StatusWait = 0 },
		"a leader forever": func(s *Settings) { s.LeaderWait = time.Hour },
		"sessions":         func(s *Settings) { s.SessionBytesMax = 16<<20 - 1 },
	} {
		s := Default()
		change(&s)
		if s.Validate() == nil {
			t.Errorf("%s: %+v is valid", name, s)
		}
	}
}

// A header is one of HTTP, or the place is named at which it is not.
func TestHeaderNamesAndValues(t *testing.T) {
	for _, test := range []struct {
		check        func(field, given string) error
		given, wrong string // "": it is valid
	}{
		{checkHeaderName, "X-Request-Id", ""},
		{checkHeaderName, "!#$%&'*+-.^_`|~09azAZ", ""},
		{checkHeaderName, "Trailer:X-Sum", ""},
		{checkHeaderName, "trace-bin", ""},
		{checkHeaderName, "", "must not be empty"},
		{checkHeaderName, "Trailer:", "must not be empty behind Trailer:"},
		{checkHeaderName, "Trailer:X Y", "at byte 9 of 11 "},
		{checkHeaderName, "a:b", "at byte 1 of 3 "},
		{checkHeaderName, ":status", "at byte 0 of 7 "},
		{checkHeaderName, "a\r\nb", "at byte 1 of 4 "},
		{checkHeaderName, "\u20ac", "at byte 0 of 3 "},
		{checkHeaderName, "\xff", "is not valid UTF-8"},
		{checkHeaderValue, "", ""},
		{checkHeaderValue, " any \t text \u20ac ", ""},
		{checkHeaderValue, "ab\r\nc", "at byte 2 of 5 "},
		{checkHeaderValue, "\n", "at byte 0 of 1 "},
		{checkHeaderValue, "abc\x00", "at byte 3 of 4 "},
		{checkHeaderValue, "\x7f", "at byte 0 of 1 "},
		{checkHeaderValue, "\xff", "is not valid UTF-8"},
	} {
		err := test.check("field", test.given)
		switch f := reason.Of(err); {
		case test.wrong == "" && err != nil:
			t.Errorf("%q: %v", test.given, err)
		case test.wrong != "" && (f.Reason != reason.InvalidArgument || !strings.Contains(f.Message, test.wrong)):
			t.Errorf("%q: %v, want %q", test.given, err, test.wrong)
		case err != nil && (len(f.Violations) != 1 || f.Violations[0].Field != "field"):
			t.Errorf("%q: %+v", test.given, f.Violations)
		}
	}
}

// Whatever passes is one line when it is written out, and is read back as it was.
func FuzzHeaders(f *testing.F) {
	f.Add("X-Request-Id", "7")
	f.Add("x", "1\r\nSet-Cookie: a=b")
	f.Add("x\n", "\x00")
	f.Add("Trailer:X-Sum", "")
	f.Fuzz(func(t *testing.T, name, value string) {
		if checkHeaderName("name", name) != nil || checkHeaderValue("value", value) != nil {
			return
		}
		name = strings.TrimPrefix(name, trailerPrefix)
		read, err := textproto.NewReader(bufio.NewReader(strings.NewReader(name + ": " + value + "\r\n\r\n"))).ReadMIMEHeader()
		if err != nil || len(read) != 1 {
			t.Fatalf("%q: %q is read as %v, %v", name, value, read, err)
		}
		for got, values := range read {
			if !strings.EqualFold(got, name) || len(values) != 1 || values[0] != strings.Trim(value, " \t") {
				t.Fatalf("%q: %q is read as %v", name, value, read)
			}
		}
	})
}
