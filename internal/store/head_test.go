package store

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/admission"
)

func TestHeadsDecodeToThemselves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := rapid.Uint64()
		h := head{
			applied: Position{Index: u.Draw(t, "index"), Term: u.Draw(t, "term")},
			clock: Clock{
				Term:  u.Draw(t, "clock term"),
				Noted: admission.Time(rapid.Int64Min(0).Draw(t, "noted")),
				Now:   admission.Time(rapid.Int64Min(0).Draw(t, "now")),
			},
			counter:            u.Draw(t, "counter"),
			lastSequence:       rapid.Uint64Max(1<<64-2).Draw(t, "sequence"),
			installedAt:        u.Draw(t, "installed"),
			configurationIndex: u.Draw(t, "configuration index"),
			configuration:      rapid.SliceOfN(rapid.Byte(), 0, 50).Draw(t, "configuration"),
			sums:               sums{records: u.Draw(t, "records"), responses: u.Draw(t, "responses"), digest: u.Draw(t, "digest")},
		}
		if len(h.configuration) == 0 {
			h.configuration = nil
		}
		value := h.encode()
		got, err := decodeHead(value)
		if err != nil || !reflect.DeepEqual(got, h) {
			t.Fatalf("put in %+v, got out %+v, error %v", h, got, err)
		}
		value[rapid.IntRange(0, len(value)-1).Draw(t, "at")] ^= 1
		if _, err := decodeHead(value); err == nil {
			t.Fatal("decodes with a bit changed")
		}
	})
}

// TestGoldenHeads decodes what earlier versions wrote beside the records. The files
// are never changed; a new version adds its own.
func TestGoldenHeads(t *testing.T) {
	h := head{
		applied: Position{Index: 1 << 33, Term: 7}, clock: Clock{Term: 7, Noted: 1 << 40, Now: 1 << 41},
		counter: 1 << 20, lastSequence: 500, installedAt: 12, configurationIndex: 9, configuration: []byte("voters"),
		sums: sums{records: 400, responses: 3, digest: 1 << 63},
	}
	id := Identification{ClusterID: "cluster", Shard: 2, Shards: 6}
	got, err := decodeHead(golden(t, "head-v1.hex", h.encode()))
	if err != nil || !reflect.DeepEqual(got, h) {
		t.Errorf("decodes to %+v, error %v", got, err)
	}
	gotID, err := decodeIdentification(golden(t, "identification-v1.hex", id.encode()))
	if err != nil || gotID != id {
		t.Errorf("decodes to %+v, error %v", gotID, err)
	}
}

// golden reads a file of testdata, in hexadecimal. Where COORDINATOR_WRITE_GOLDEN is
// set it writes it first.
func golden(t *testing.T, name string, value []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("COORDINATOR_WRITE_GOLDEN") != "" {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(value)+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	value, err = hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// FuzzDecodeHead looks for bytes that decode and encode to something else.
func FuzzDecodeHead(f *testing.F) {
	h := head{applied: Position{Index: 300, Term: 2}, configuration: []byte("voters"), lastSequence: 1 << 40}
	id := Identification{ClusterID: "cluster", Shard: 2, Shards: 6}
	for _, value := range [][]byte{h.encode(), (&head{}).encode(), id.encode()} {
		f.Add(value[:len(value)-checksumBytes])
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		value := appendChecksum(content)
		if h, err := decodeHead(value); err == nil && string(h.encode()) != string(value) {
			t.Errorf("%x is a head, and is encoded as %x", value, h.encode())
		}
		if id, err := decodeIdentification(value); err == nil && string(id.encode()) != string(value) {
			t.Errorf("%x is an identification, and is encoded as %x", value, id.encode())
		}
	})
}
