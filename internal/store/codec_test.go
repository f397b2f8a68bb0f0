package store

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

// fullRecord has something in every field, and a response of the given length.
func fullRecord(response int) (*admission.Record, storedResponse) {
	r := &admission.Record{
		Identity:    admission.Identity{Namespace: "tenant", Principal: "account", Operation: "POST /v1/x", Key: "ключ"},
		State:       admission.StateCommitted,
		Fence:       7,
		Attempt:     3,
		Revision:    300,
		SettledFrom: 299,
		Holder:      admission.AttemptID{1, 2, 3},
		Ended:       []admission.EndedAttempt{{ID: admission.AttemptID{9}, EndedAt: 5}, {ID: admission.AttemptID{1, 2, 3}, EndedAt: 1 << 40}},
		Fingerprint: []byte{0xff, 0},
		OnLapse:     admission.Hold, PendingTTL: time.Minute, Retention: time.Hour,
		Owner: "worker", GrantedAt: 1, PendingDeadline: 1 << 50, EndedAt: 1 << 40,
		CreatedWallNanos: 1_700_000_000_000_000_000, StartedWallNanos: -1, CommittedWallNanos: 2,
		Late:          true,
		Previous:      admission.Previous{End: admission.EndedReleased, Reason: "nothing happened", Fence: 5},
		ReleaseReason: "none",
		Response:      admission.Response{Hash: [32]byte{1, 31: 2}, Bytes: uint32(response)},
		Sequence:      11,
	}
	return r, newStoredResponse(bytes.Repeat([]byte{'r'}, response))
}

func drawRecord(t *rapid.T) (*admission.Record, storedResponse) {
	text := func(name string, least, most int) string {
		return rapid.StringN(-1, -1, most).Filter(func(s string) bool { return len(s) >= least }).Draw(t, name)
	}
	times := rapid.Map(rapid.Int64Min(0), func(v int64) admission.Time { return admission.Time(v) })
	attempts := rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) admission.AttemptID { return admission.AttemptID(b) })
	r := &admission.Record{
		Identity: admission.Identity{
			Namespace: text("namespace", 1, 64), Principal: text("principal", 0, 128),
			Operation: text("operation", 0, 255), Key: text("key", 1, 255),
		},
		State:    admission.State(rapid.IntRange(0, admission.States-1).Draw(t, "state")),
		Sequence: rapid.Uint64Min(1).Draw(t, "sequence"),
	}
	least := 0
	if r.State == admission.StateNone {
		least = 1
	}
	for range rapid.IntRange(least, 10).Draw(t, "ended") {
		r.Ended = append(r.Ended, admission.EndedAttempt{ID: attempts.Draw(t, "attempt"), EndedAt: times.Draw(t, "ended at")})
	}
	if r.State == admission.StateNone {
		return r, storedResponse{}
	}
	r.Fence, r.Revision = rapid.Uint64().Draw(t, "fence"), rapid.Uint64().Draw(t, "revision")
	r.SettledFrom, r.Attempt = rapid.Uint64().Draw(t, "settled"), rapid.Uint32().Draw(t, "attempt number")
	r.Holder = attempts.Draw(t, "holder")
	r.Fingerprint = rapid.SliceOfN(rapid.Byte(), 0, 64).Draw(t, "fingerprint")
	if len(r.Fingerprint) == 0 {
		r.Fingerprint = nil
	}
	r.OnLapse = admission.OnLapse(rapid.IntRange(0, 1).Draw(t, "on lapse"))
	r.PendingTTL, r.Retention = time.Duration(times.Draw(t, "ttl")), time.Duration(times.Draw(t, "retention"))
	r.Owner = text("owner", 0, 128)
	r.GrantedAt, r.PendingDeadline, r.EndedAt = times.Draw(t, "granted"), times.Draw(t, "deadline"), times.Draw(t, "ended")
	r.CreatedWallNanos, r.StartedWallNanos = rapid.Int64().Draw(t, "created"), rapid.Int64().Draw(t, "started")
	r.CommittedWallNanos = rapid.Int64().Draw(t, "committed")
	r.Late = rapid.Bool().Draw(t, "late")
	r.Previous.End = admission.PreviousEnd(rapid.IntRange(0, 2).Draw(t, "previous"))
	r.Previous.Fence, r.Previous.Reason = rapid.Uint64().Draw(t, "previous fence"), text("previous reason", 0, 100)
	r.ReleaseReason = text("reason", 0, 100)
	if r.State != admission.StateCommitted {
		return r, storedResponse{}
	}
	copy(r.Response.Hash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash"))
	r.Response.Bytes = rapid.Uint32().Draw(t, "bytes")
	return r, newStoredResponse(make([]byte, rapid.SampledFrom([]int{0, 1, 1024, 1025, 9999}).Draw(t, "response")))
}

func TestRecordsDecodeToThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, response := drawRecord(t)
		value, err := encodeRecord(r, r.Sequence, response)
		if err != nil {
			t.Fatal(err)
		}
		got, gotResponse, err := decodeRecord(r.Sequence, value)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, r) || !reflect.DeepEqual(gotResponse, response) {
			t.Fatalf("put in\n%+v %+v\ngot out\n%+v %+v", r, response, got, gotResponse)
		}
		checkGlance(t, got, gotResponse, value)
		if _, _, err := decodeRecord(r.Sequence+1, value); err == nil {
			t.Fatal("decodes under another sequence")
		}
	})
}

type failer interface{ Fatalf(string, ...any) }

func checkGlance(t failer, r *admission.Record, response storedResponse, value []byte) {
	g, err := glance(r.Sequence, value)
	if err != nil {
		t.Fatalf("a glance fails at what decodes: %v", err)
	}
	if g.state != r.State || g.alarm != r.Alarm() || string(g.namespace) != r.Identity.Namespace ||
		!bytes.Equal(g.identity, r.Identity.AppendTo(nil)) || !reflect.DeepEqual(g.response, response) {
		t.Fatalf("a glance shows %+v of %+v", g, r)
	}
}

func TestWhatCannotBeStoredIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(r *admission.Record){
		"unknown state":           func(r *admission.Record) { r.State = admission.States },
		"tombstone of nothing":    func(r *admission.Record) { r.State, r.Ended = admission.StateNone, nil },
		"too many ended":          func(r *admission.Record) { r.Ended = make([]admission.EndedAttempt, endedAttemptsMax+1) },
		"on lapse":                func(r *admission.Record) { r.OnLapse = admission.Hold + 1 },
		"previous":                func(r *admission.Record) { r.Previous.End = admission.EndedLapsed + 1 },
		"retention":               func(r *admission.Record) { r.Retention = -1 },
		"pending ttl":             func(r *admission.Record) { r.PendingTTL = -1 },
		"deadline":                func(r *admission.Record) { r.PendingDeadline = -1 },
		"ended at":                func(r *admission.Record) { r.EndedAt = -1 },
		"ended attempt":           func(r *admission.Record) { r.Ended[0].EndedAt = -1 },
		"granted at":              func(r *admission.Record) { r.GrantedAt = -1 },
		"fingerprint":             func(r *admission.Record) { r.Fingerprint = make([]byte, 65) },
		"owner":                   func(r *admission.Record) { r.Owner = strings.Repeat("o", 129) },
		"reason":                  func(r *admission.Record) { r.ReleaseReason = strings.Repeat("o", 1025) },
		"previous reason":         func(r *admission.Record) { r.Previous.Reason = strings.Repeat("o", 1025) },
		"no namespace":            func(r *admission.Record) { r.Identity.Namespace = "" },
		"key that is no text":     func(r *admission.Record) { r.Identity.Key = "\xff" },
		"response of the pending": func(r *admission.Record) { r.State = admission.StatePending },
	} {
		t.Run(name, func(t *testing.T) {
			r, response := fullRecord(3)
			spoil(r)
			if _, err := encodeRecord(r, 1, response); err == nil {
				t.Error("it was encoded")
			}
		})
	}
}

// sealed puts the right checksum behind an encoding that is not right.
func sealed(sequence uint64, encoded []byte) []byte {
	return appendUint32(bytes.Clone(encoded), recordChecksum(sequence, encoded))
}

func appendUint32(b []byte, v uint32) []byte {
	return append(b, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
}

func TestOnlyCanonicalRecordsDecode(t *testing.T) {
	r, response := fullRecord(3)
	value, err := encodeRecord(r, 1, response)
	if err != nil {
		t.Fatal(err)
	}
	encoded := value[:len(value)-checksumBytes]
	for length := range len(encoded) {
		if _, _, err := decodeRecord(1, sealed(1, encoded[:length])); err == nil {
			t.Errorf("decodes without its last %d bytes", len(encoded)-length)
		}
	}
	if _, _, err := decodeRecord(1, sealed(1, append(bytes.Clone(encoded), 0))); err == nil {
		t.Error("decodes with another byte behind it")
	}
	for i := range value {
		flipped := bytes.Clone(value)
		flipped[i] ^= 0x10
		if _, _, err := decodeRecord(1, flipped); err == nil {
			t.Errorf("decodes with byte %d changed", i)
		}
		if _, err := glance(1, flipped); err == nil {
			t.Errorf("a glance accepts byte %d changed", i)
		}
	}
	tombstone := []byte{recordVersion, 0, 1, 'n', 0, 0, 1, 'k', 0}
	if _, _, err := decodeRecord(1, sealed(1, tombstone)); err == nil {
		t.Error("a tombstone that remembers nothing decodes")
	}
	if _, err := glance(1, sealed(1, tombstone)); err == nil {
		t.Error("a glance accepts a tombstone that remembers nothing")
	}
}

// TestGoldenRecords decodes what earlier versions wrote. The files are never
// changed; a new version adds its own.
func TestGoldenRecords(t *testing.T) {
	tombstone := &admission.Record{Identity: admission.Identity{Namespace: "default", Key: "k"}, Ended: []admission.EndedAttempt{{ID: admission.AttemptID{4}, EndedAt: 77}}}
	pending, _ := fullRecord(0)
	pending.State, pending.Response = admission.StatePending, admission.Response{}
	inline, inlineResponse := fullRecord(5)
	apart, apartResponse := fullRecord(1025)
	for name, want := range map[string]struct {
		record   *admission.Record
		response storedResponse
	}{
		"tombstone":        {tombstone, storedResponse{}},
		"pending":          {pending, storedResponse{}},
		"committed-inline": {inline, inlineResponse},
		"committed-apart":  {apart, apartResponse},
	} {
		t.Run(name, func(t *testing.T) {
			want.record.Sequence = 11
			value, err := encodeRecord(want.record, 11, want.response)
			if err != nil {
				t.Fatal(err)
			}
			got, response, err := decodeRecord(11, golden(t, "record-v1-"+name+".hex", value))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want.record) || !reflect.DeepEqual(response, want.response) {
				t.Errorf("decodes to\n%+v %+v\nit was\n%+v %+v", got, response, want.record, want.response)
			}
		})
	}
}

// FuzzDecodeRecord looks for bytes that decode and encode to something else, or
// that decoding and a glance do not agree on.
func FuzzDecodeRecord(f *testing.F) {
	for _, length := range []int{0, 5, 1025} {
		r, response := fullRecord(length)
		value, err := encodeRecord(r, 1, response)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value[:len(value)-checksumBytes])
	}
	f.Add([]byte{recordVersion, 0, 1, 'n', 0, 0, 1, 'k', 1, 15: 0, 30: 0})
	f.Fuzz(func(t *testing.T, encoded []byte) {
		value := sealed(1, encoded)
		_, glanceErr := glance(1, value)
		r, response, err := decodeRecord(1, value)
		if err != nil {
			return
		}
		if glanceErr != nil {
			t.Fatalf("decodes, and a glance says %v", glanceErr)
		}
		checkGlance(t, r, response, value)
		again, err := encodeRecord(r, 1, response)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again, value) {
			t.Fatalf("%x decodes, and encodes to %x", value, again)
		}
	})
}
