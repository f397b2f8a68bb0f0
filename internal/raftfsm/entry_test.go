package raftfsm

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

func drawBytes(t *rapid.T, label string, most int) []byte {
	drawn := rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, label)
	if len(drawn) == 0 {
		return nil
	}
	return drawn
}

func drawDuration(t *rapid.T, label string) time.Duration {
	return time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, label))
}

func drawIdentity(t *rapid.T) admission.Identity {
	part := func(label string, most int) string { return string(drawBytes(t, label, most)) }
	return admission.Identity{
		Namespace: part("namespace", admission.NamespaceBytesMax), Principal: part("principal", admission.PrincipalBytesMax),
		Operation: part("operation", admission.OperationBytesMax), Key: part("key", admission.KeyBytesMax),
	}
}

func drawAttempt(t *rapid.T) (id admission.AttemptID) {
	copy(id[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "attempt"))
	return id
}

func drawToken(t *rapid.T) admission.Token {
	return admission.Token{Fence: rapid.Uint64().Draw(t, "fence"), Attempt: drawAttempt(t)}
}

func drawResponse(t *rapid.T) (response admission.Response) {
	copy(response.Hash[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "hash"))
	response.Bytes = rapid.Uint32().Draw(t, "bytes")
	response.Stored = drawBytes(t, "stored", 2000)
	return response
}

// drawCommand draws every field of a command of every kind.
func drawCommand(t *rapid.T) admission.Command {
	id := drawIdentity(t)
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return admission.Reserve{
			Identity: id, Attempt: drawAttempt(t), Fingerprint: drawBytes(t, "fingerprint", 64),
			PendingTTL: drawDuration(t, "pending_ttl"), Retention: drawDuration(t, "retention"),
			OnLapse:     admission.OnLapse(rapid.IntRange(0, 1).Draw(t, "on_lapse")),
			Owner:       string(drawBytes(t, "owner", 128)),
			WantedUntil: admission.Time(rapid.Int64().Draw(t, "wanted_until")),
			RecordsMax:  rapid.Uint64().Draw(t, "records_max"), StorageFull: rapid.Bool().Draw(t, "storage_full"),
		}
	case 1:
		return admission.Commit{Identity: id, Token: drawToken(t), Response: drawResponse(t), Retention: drawDuration(t, "retention")}
	case 2:
		return admission.Release{Identity: id, Token: drawToken(t), Reason: string(drawBytes(t, "reason", 1024))}
	case 3:
		return admission.Extend{Identity: id, Token: drawToken(t), PendingTTL: drawDuration(t, "pending_ttl"), Span: drawDuration(t, "span")}
	case 4:
		return admission.Resolve{
			Identity: id, Revision: rapid.Uint64().Draw(t, "revision"), Applied: rapid.Bool().Draw(t, "applied"),
			Response: drawResponse(t), Note: string(drawBytes(t, "note", 1024)),
		}
	default:
		return admission.Purge{
			Identity: id, Revision: rapid.Uint64().Draw(t, "revision"), Fence: rapid.Uint64().Draw(t, "fence"),
			Force: rapid.Bool().Draw(t, "force"),
		}
	}
}

func drawEntry(t *rapid.T) *Entry {
	e := &Entry{Term: rapid.Uint64().Draw(t, "term"), WallNanos: rapid.Int64().Draw(t, "wall")}
	if rapid.IntRange(0, 9).Draw(t, "start") == 0 {
		e.LeaderStart = true
		return e
	}
	e.Elapsed = time.Duration(rapid.Int64Range(0, int64(ElapsedMax)).Draw(t, "elapsed"))
	e.Reclaim = rapid.IntRange(0, ReclaimMax).Draw(t, "reclaim")
	for range rapid.IntRange(0, 4).Draw(t, "commands") {
		e.Commands = append(e.Commands, drawCommand(t))
	}
	return e
}

func TestEntryRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawEntry(t)
		encoded, err := want.Encode()
		if err != nil {
			t.Fatal(err)
		}
		got, err := DecodeEntry(encoded)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
		again, err := got.Encode()
		if err != nil || !bytes.Equal(again, encoded) {
			t.Fatalf("encoded again: %v, other bytes: %v", err, !bytes.Equal(again, encoded))
		}
	})
}

func TestCommandBytesBoundsTheEncoding(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := drawEntry(t)
		encoded, err := e.Encode()
		if err != nil {
			t.Fatal(err)
		}
		estimate := 64
		for _, command := range e.Commands {
			estimate += CommandBytes(command)
		}
		slack := 64 + commandBytesFixed*len(e.Commands)
		if len(encoded) > estimate || len(encoded) < estimate-slack {
			t.Fatalf("%d bytes, estimated %d", len(encoded), estimate)
		}
	})
}

func TestEncodeRefuses(t *testing.T) {
	reserve := admission.Reserve{Identity: admission.Identity{Namespace: "n", Key: "k"}}
	held := reserve
	held.OnLapse = 7
	for name, e := range map[string]*Entry{
		"negative elapsed":    {Elapsed: -1},
		"ten years and more":  {Elapsed: ElapsedMax + 1},
		"negative reclaim":    {Reclaim: -1},
		"large reclaim":       {Reclaim: ReclaimMax + 1},
		"start with commands": {LeaderStart: true, Commands: []admission.Command{reserve}},
		"start with elapsed":  {LeaderStart: true, Elapsed: 1},
		"start with reclaim":  {LeaderStart: true, Reclaim: 1},
		"unknown on_lapse":    {Commands: []admission.Command{held}},
		"no command":          {Commands: []admission.Command{nil}},
	} {
		if _, err := e.Encode(); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	reserve := admission.Reserve{Identity: admission.Identity{Namespace: "n", Key: "k"}}
	good, err := (&Entry{Term: 3, Commands: []admission.Command{reserve}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	field := func(src []byte, number protowire.Number, value []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(bytes.Clone(src), number, protowire.BytesType), value)
	}
	entry := []byte{entryVersion}
	command := func(kind protowire.Number, body []byte) []byte { return field(entry, 6, field(nil, kind, body)) }
	identity := field(nil, 1, field(nil, 4, []byte("k")))
	attempt := func(size int) []byte { return field(nil, 2, make([]byte, size)) }
	lapse := protowire.AppendVarint(protowire.AppendTag(nil, 6, protowire.VarintType), 1)
	number := func(number protowire.Number, value uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), value)
	}
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

	if _, err := DecodeEntry(command(1, join(identity, attempt(16), lapse))); err != nil {
		t.Fatalf("the base of the cases below: %v", err)
	}
	for name, src := range map[string][]byte{
		"empty":                      {},
		"version 0":                  append([]byte{0}, good[1:]...),
		"next version":               append([]byte{entryVersion + 1}, good[1:]...),
		"cut":                        good[:len(good)-1],
		"unknown field of the entry": field(good, 99, nil),
		"command without a kind":     field(entry, 6, nil),
		"unknown kind":               command(99, nil),
		"no identity":                command(1, join(attempt(16), lapse)),
		"no attempt":                 command(1, join(identity, lapse)),
		"short attempt":              command(1, join(identity, attempt(15), lapse)),
		"no on_lapse":                command(1, join(identity, attempt(16))),
		"unknown field of a Reserve": command(1, join(identity, attempt(16), lapse, field(nil, 99, nil))),
		"unknown field of an id":     command(1, join(field(nil, 1, field(nil, 99, nil)), attempt(16), lapse)),
		"commit without a token":     command(2, identity),
		"token of a bad length":      command(2, join(identity, field(nil, 2, attempt(3)))),
		"unknown field of a token":   command(3, join(identity, field(nil, 2, join(attempt(16), field(nil, 99, nil))))),
		"short hash":                 command(5, join(identity, field(nil, 4, field(nil, 1, make([]byte, 31))))),
		"unknown field of a hash":    command(5, join(identity, field(nil, 4, join(field(nil, 1, make([]byte, 32)), field(nil, 99, nil))))),
		"negative elapsed":           join(entry, number(2, 1<<63)),
		"ten years and more":         join(entry, number(2, uint64(ElapsedMax)+1)),
		"start and a reclaim":        join(entry, number(4, 1), number(5, 1)),
		"large reclaim":              join(entry, number(5, ReclaimMax+1)),
	} {
		if e, err := DecodeEntry(src); !errors.Is(err, ErrEntry) {
			t.Errorf("%s: %+v, %v", name, e, err)
		}
	}
}

// FuzzDecodeEntry looks for a panic, and for bytes that are accepted and encoded
// again into something else.
func FuzzDecodeEntry(f *testing.F) {
	for _, line := range goldenLines(f) {
		f.Add(line)
	}
	f.Add([]byte{})
	f.Add([]byte{entryVersion})
	f.Fuzz(func(t *testing.T, src []byte) {
		e, err := DecodeEntry(src)
		if err != nil {
			if !errors.Is(err, ErrEntry) {
				t.Fatalf("error %v is not ErrEntry", err)
			}
			return
		}
		encoded, err := e.Encode()
		if err != nil {
			t.Fatalf("decoded, but: %v", err)
		}
		again, err := DecodeEntry(encoded)
		if err != nil || !reflect.DeepEqual(again, e) {
			t.Fatalf("decoded twice: %v\n%+v\n%+v", err, e, again)
		}
	})
}
