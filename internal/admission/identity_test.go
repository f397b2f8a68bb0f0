package admission_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestIdentityLimits(t *testing.T) {
	good := admission.Identity{Namespace: "n", Key: "k"}
	with := func(change func(*admission.Identity)) admission.Identity {
		id := good
		change(&id)
		return id
	}
	for _, c := range []struct {
		name  string
		id    admission.Identity
		field string
	}{
		{"least", good, ""},
		{"namespace empty", with(func(id *admission.Identity) { id.Namespace = "" }), "identity.namespace"},
		{"namespace most", with(func(id *admission.Identity) { id.Namespace = text(64) }), ""},
		{"namespace over", with(func(id *admission.Identity) { id.Namespace = text(65) }), "identity.namespace"},
		{"namespace in bytes", with(func(id *admission.Identity) { id.Namespace = strings.Repeat("ü", 33) }), "identity.namespace"},
		{"principal most", with(func(id *admission.Identity) { id.Principal = text(128) }), ""},
		{"principal over", with(func(id *admission.Identity) { id.Principal = text(129) }), "identity.principal"},
		{"operation most", with(func(id *admission.Identity) { id.Operation = text(255) }), ""},
		{"operation over", with(func(id *admission.Identity) { id.Operation = text(256) }), "identity.operation"},
		{"key empty", with(func(id *admission.Identity) { id.Key = "" }), "identity.key"},
		{"key most", with(func(id *admission.Identity) { id.Key = text(255) }), ""},
		{"key over", with(func(id *admission.Identity) { id.Key = text(256) }), "identity.key"},
		{"namespace not UTF-8", with(func(id *admission.Identity) { id.Namespace = "\xff" }), "identity.namespace"},
		{"principal not UTF-8", with(func(id *admission.Identity) { id.Principal = "\xff" }), "identity.principal"},
		{"operation not UTF-8", with(func(id *admission.Identity) { id.Operation = "\xff" }), "identity.operation"},
		{"key not UTF-8", with(func(id *admission.Identity) { id.Key = "\xed\xa0\x80" }), "identity.key"},
		{"a zero byte is a byte", with(func(id *admission.Identity) { id.Key = "\x00" }), ""},
	} {
		v := c.id.Validate()
		if (c.field == "") != (v == nil) || v != nil && (v.Field != c.field || v.Reason != admission.InvalidArgument || v.String() != v.Field+" "+v.Detail) {
			t.Errorf("%s: %v, want a violation of %q", c.name, v, c.field)
		}
	}
}

// No trimming, no case folding, no normalisation: other bytes, another record.
func TestIdentityIsComparedByteForByte(t *testing.T) {
	d := newDesk(t)
	for i, id := range []admission.Identity{
		{Namespace: "n", Principal: "a:b", Operation: "c", Key: "k"},
		{Namespace: "n", Principal: "a", Operation: "b:c", Key: "k"},
		{Namespace: "n", Principal: "a", Operation: ":b:c", Key: "k"},
		{Namespace: "n", Key: "k"}, {Namespace: "n", Key: "K"}, {Namespace: "n", Key: "k "}, {Namespace: " n", Key: "k"},
		{Namespace: "n", Key: "é"}, {Namespace: "n", Key: "e\u0301"}, {Namespace: "n", Key: "\x00k"},
		{Namespace: "nk", Key: "k"}, {Namespace: "n", Principal: "k", Key: "k"}, {Namespace: "n", Operation: "k", Key: "k"},
	} {
		d.id = id
		if answer := d.do(d.reserve("a"), admission.None); answer.Outcome != admission.OutcomeGranted || answer.Attempt != 1 || answer.Repeated {
			t.Errorf("%d: %+v", i, answer)
		}
	}
}

func drawIdentity(t *rapid.T) admission.Identity {
	part := func(name string, least, most int) string {
		return rapid.StringOfN(rapid.RuneFrom([]rune("ab:\x00é")), least, most, 60).Draw(t, name)
	}
	return admission.Identity{
		Namespace: part("namespace", 1, 4), Principal: part("principal", 0, 4),
		Operation: part("operation", 0, 4), Key: part("key", 1, 4),
	}
}

// Two identities never share an encoding, and none is the beginning of another's.
func TestIdentityEncodingIsInjective(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := drawIdentity(t), drawIdentity(t)
		encodedA, encodedB := a.AppendTo(nil), b.AppendTo(nil)
		if (a == b) != bytes.HasPrefix(encodedA, encodedB) || (a == b) != bytes.Equal(encodedA, encodedB) {
			t.Fatalf("%+v and %+v: %x, %x", a, b, encodedA, encodedB)
		}
		got, rest, err := admission.DecodeIdentity(append(a.AppendTo([]byte(nil)), "rest"...))
		if err != nil || got != a || string(rest) != "rest" {
			t.Fatalf("%+v came back as %+v, %q, %v", a, got, rest, err)
		}
	})
}

func TestIdentityAppendsTo(t *testing.T) {
	id := admission.Identity{Namespace: text(64), Principal: text(128), Operation: text(255), Key: text(255)}
	encoded := id.AppendTo([]byte("before"))
	if !bytes.HasPrefix(encoded, []byte("before")) {
		t.Fatal("what was there before is gone")
	}
	if got, rest, err := admission.DecodeIdentity(encoded[len("before"):]); err != nil || got != id || len(rest) != 0 {
		t.Errorf("%v", err)
	}
}

// The encoding and the shard are a part of the data format: these never change.
func TestIdentityFormat(t *testing.T) {
	id := admission.Identity{Namespace: "default", Principal: "p", Operation: "op", Key: "k"}
	if got, want := hex.EncodeToString(id.AppendTo(nil)), "0764656661756c740170026f70016b"; got != want {
		t.Errorf("the encoding is %s, want %s", got, want)
	}
	for shards, want := range map[int]int{1: 0, 3: 2, 6: 2, 7: 6, 64: 58} {
		if got := id.Shard(shards); got != want {
			t.Errorf("of %d shards: %d, want %d", shards, got, want)
		}
	}
}

func TestShardsAreEven(t *testing.T) {
	const shards, keys = 6, 6000
	var count [shards]int
	for i := range keys {
		id := admission.Identity{Namespace: "n", Key: strings.Repeat("x", i%200) + string(rune('a'+i/200))}
		count[id.Shard(shards)]++
	}
	for shard, n := range count {
		if n < keys/shards*8/10 || n > keys/shards*12/10 {
			t.Errorf("shard %d has %d of %d", shard, n, keys)
		}
	}
}

func TestDecodeIdentityIsStrict(t *testing.T) {
	for name, encoded := range map[string]string{
		"nothing":            "",
		"short":              "\x01",
		"three parts":        "\x01n\x00\x00",
		"empty key":          "\x01n\x00\x00\x00",
		"empty namespace":    "\x00\x00\x00\x01k",
		"not UTF-8":          "\x01\xff\x00\x00\x01k",
		"longer than it is":  "\x01n\x00\x00\x02k",
		"non-canonical size": "\x81\x00n\x00\x00\x01k",
		"size over 64 bits":  "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7fn",
		"size of 2^63":       "\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01n\x00\x00\x01k",
		"over the limit":     "\x41" + text(65) + "\x00\x00\x01k",
	} {
		if id, _, err := admission.DecodeIdentity([]byte(encoded)); !errors.Is(err, admission.ErrIdentityEncoding) || id != (admission.Identity{}) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
}

// FuzzDecodeIdentity: whatever is accepted is exactly what AppendTo writes.
func FuzzDecodeIdentity(f *testing.F) {
	f.Add(admission.Identity{Namespace: "default", Principal: "p", Operation: "op", Key: "k"}.AppendTo(nil))
	f.Add([]byte("\x81\x00n\x00\x00\x01k"))
	f.Add([]byte("\x01n\x00\x00\x01krest"))
	f.Fuzz(func(t *testing.T, encoded []byte) {
		id, rest, err := admission.DecodeIdentity(encoded)
		if err != nil {
			return
		}
		if v := id.Validate(); v != nil {
			t.Fatalf("an invalid identity: %v", v)
		}
		if again := append(id.AppendTo(nil), rest...); !bytes.Equal(again, encoded) {
			t.Fatalf("%x was read, and is written as %x", encoded, again)
		}
	})
}
