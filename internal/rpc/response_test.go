package rpc

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

func testCodec(t testing.TB, compressFrom int) *codec {
	t.Helper()
	c, err := newCodec(compressFrom)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func drawResponse(t *rapid.T, label string) *coordinatorv1.Response {
	r := &coordinatorv1.Response{
		Code:        rapid.Uint32Range(0, 999).Draw(t, label+" code"),
		ContentType: rapid.StringN(0, 20, 40).Draw(t, label+" content type"),
		Body:        rapid.SliceOfN(rapid.Byte(), 0, 2000).Draw(t, label+" body"),
	}
	for range rapid.IntRange(0, 5).Draw(t, label+" headers") {
		r.Headers = append(r.Headers, &coordinatorv1.Header{
			Name: rapid.StringN(1, 10, 30).Draw(t, label+" name"), Value: rapid.StringN(0, 10, 30).Draw(t, label+" value"),
		})
	}
	return r
}

// Invariant 6: what is given back is what was committed, in both encodings.
func TestStoredResponsesRoundTrip(t *testing.T) {
	plain, packed := testCodec(t, 1<<30), testCodec(t, 0)
	rapid.Check(t, func(t *rapid.T) {
		want := drawResponse(t, "r")
		hashes := map[[32]byte]bool{}
		for _, c := range []*codec{plain, packed} {
			stored := c.encode(want)
			hashes[stored.Hash] = true
			if int(stored.Bytes) != responseBytes(want) {
				t.Fatalf("%d bytes, want %d", stored.Bytes, responseBytes(want))
			}
			for _, reader := range []*codec{plain, packed} { // settings change, what is stored stays
				got, err := reader.decode(stored.Stored, stored.Hash)
				if err != nil || !proto.Equal(got, want) {
					t.Fatalf("got %v, %v; want %v", got, err, want)
				}
			}
		}
		if len(hashes) != 1 {
			t.Fatal("the hash depends on the encoding")
		}
		other := drawResponse(t, "other")
		if same := plain.encode(other).Hash == plain.encode(want).Hash; same != proto.Equal(other, want) {
			t.Fatalf("equal hashes: %v, equal responses: %v", same, proto.Equal(other, want))
		}
	})
}

// No two responses share a canonical form, also where their parts run together.
func TestHashesKeepPartsApart(t *testing.T) {
	c := testCodec(t, 1<<30)
	h := func(name, value string) *coordinatorv1.Header { return &coordinatorv1.Header{Name: name, Value: value} }
	seen := map[[32]byte]int{}
	all := []*coordinatorv1.Response{
		nil,
		{Code: 1},
		{Body: []byte("ab")},
		{ContentType: "a", Body: []byte("b")},
		{ContentType: "ab"},
		{Headers: []*coordinatorv1.Header{h("a", "b")}},
		{Headers: []*coordinatorv1.Header{h("ab", "")}},
		{Headers: []*coordinatorv1.Header{h("a", ""), h("b", "")}},
		{Headers: []*coordinatorv1.Header{h("b", ""), h("a", "")}},
		{Headers: []*coordinatorv1.Header{h("a", "")}, ContentType: "b"},
		{Body: []byte("\x00\x00")},
	}
	for i, r := range all {
		hash := c.encode(r).Hash
		if other, ok := seen[hash]; ok {
			t.Errorf("%d and %d share a hash", i, other)
		}
		seen[hash] = i
	}
	if c.encode(nil).Hash != c.encode(&coordinatorv1.Response{}).Hash {
		t.Error("no response and the empty one differ")
	}
}

func TestCompressionHelpsOrIsLeftOut(t *testing.T) {
	c := testCodec(t, 512)
	noise := make([]byte, 4096)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(noise)
	for _, test := range []struct {
		name string
		body []byte
		want byte
	}{
		{"small", []byte("small"), storedPlain},
		{"repetitive", bytes.Repeat([]byte("abc"), 1000), storedZstd},
		{"the largest", bytes.Repeat([]byte("abcd"), 1<<18), storedZstd},
		{"noise", noise, storedPlain},
	} {
		stored := c.encode(&coordinatorv1.Response{Body: test.body})
		if stored.Stored[0] != test.want {
			t.Errorf("%s: version %d, want %d", test.name, stored.Stored[0], test.want)
		}
		if len(stored.Stored) > len(test.body)+16 {
			t.Errorf("%s: %d bytes became %d", test.name, len(test.body), len(stored.Stored))
		}
		if got, err := c.decode(stored.Stored, stored.Hash); err != nil || !bytes.Equal(got.GetBody(), test.body) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// The format is kept: what older versions stored is read by all later ones.
func TestStoredResponsesOfVersion1(t *testing.T) {
	c := testCodec(t, 512)
	canonical := "\xc9\x01\x02\x01A\x01b\x03key\x00\x0atext/plain\x02ok"
	got, err := c.decode([]byte("\x01"+canonical), sha256.Sum256([]byte(canonical)))
	want := &coordinatorv1.Response{Code: 201, ContentType: "text/plain", Body: []byte("ok"),
		Headers: []*coordinatorv1.Header{{Name: "A", Value: "b"}, {Name: "key"}}}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	// The same body over and over, compressed.
	packed, err := hex.DecodeString("0228b52ffd0000ad000068000000a001616263646566676801540d032b9505")
	if err != nil {
		t.Fatal(err)
	}
	canonical = "\x00\x00\x00\xa0\x01" + strings.Repeat("abcdefgh", 20)
	if got, err := c.decode(packed, sha256.Sum256([]byte(canonical))); err != nil || len(got.GetBody()) != 160 {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestStoredResponsesThatAreNone(t *testing.T) {
	c := testCodec(t, 0)
	bomb := c.encoder.EncodeAll(make([]byte, 64<<20), []byte{storedZstd})
	for name, stored := range map[string][]byte{
		"nothing":          nil,
		"no version":       {0},
		"a later version":  {3, 0, 0, 0, 0},
		"no frame":         {storedZstd, 1, 2, 3},
		"a bomb":           bomb,
		"trailing bytes":   {storedPlain, 0, 0, 0, 0, 0},
		"a long number":    {storedPlain, 0x80, 0, 0, 0, 0},
		"a large code":     {storedPlain, 0xe8, 0x07, 0, 0, 0},
		"many headers":     {storedPlain, 0, 0x81, 0x01, 0, 0},
		"a text too short": {storedPlain, 0, 0, 5, 'a'},
		"a huge text":      {storedPlain, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
	} {
		var hash [32]byte
		if len(stored) > 0 && stored[0] == storedPlain {
			hash = sha256.Sum256(stored[1:])
		}
		if got, err := c.decode(stored, hash); err == nil {
			t.Errorf("%s: %v", name, got)
		}
	}
	good := c.encode(&coordinatorv1.Response{Code: 1})
	if _, err := c.decode(good.Stored, [32]byte{1}); err == nil {
		t.Error("a response under another hash was given back")
	}
}

func FuzzStoredResponse(f *testing.F) {
	c := testCodec(f, 0)
	f.Add([]byte{})
	f.Add(c.encode(nil).Stored)
	f.Add(c.encode(&coordinatorv1.Response{Body: bytes.Repeat([]byte("abc"), 300)}).Stored)
	f.Add(testCodec(f, 1<<20).encode(&coordinatorv1.Response{Code: 200, ContentType: "a/b",
		Headers: []*coordinatorv1.Header{{Name: "a", Value: "b"}}}).Stored)
	f.Fuzz(func(t *testing.T, stored []byte) {
		_, _ = c.decode(stored, [32]byte{}) // must not panic, nor take memory without bound
		if len(stored) == 0 || len(stored) > canonicalBytesMax {
			return
		}
		r, err := parseCanonical(stored)
		if err != nil {
			return
		}
		if again := appendCanonical(nil, r); !bytes.Equal(again, stored) {
			t.Fatalf("%x is read as %v, which is written as %x", stored, r, again)
		}
	})
}

// The largest response and its framing fit what the decoder may use.
func TestTheLargestResponseFits(t *testing.T) {
	r := &coordinatorv1.Response{Code: 999}
	for range admission.HeadersMax {
		r.Headers = append(r.Headers, &coordinatorv1.Header{Name: strings.Repeat("n", 4000), Value: strings.Repeat("v", 192)})
	}
	r.Body = make([]byte, admission.ResponseBytesMax-responseBytes(r))
	c := testCodec(t, 0)
	stored := c.encode(r)
	got, err := c.decode(stored.Stored, stored.Hash)
	if err != nil || !proto.Equal(got, r) || stored.Bytes != admission.ResponseBytesMax {
		t.Errorf("%v, %d bytes", err, stored.Bytes)
	}
}
