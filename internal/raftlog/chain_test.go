package raftlog

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hashicorp/raft"
)

// Links decide by content: the same entries make the same chain, anything else another.
func TestLinks(t *testing.T) {
	first := &raft.Log{Index: 1, Term: 2, Data: []byte("first")}
	second := &raft.Log{Index: 2, Term: 2, Data: []byte("second")}
	start, one, err := chainEnd{}.after(first)
	if err != nil || one.kind != linkOn {
		t.Fatalf("%+v, %v", one, err)
	}
	_, two, err := start.after(second)
	if err != nil || two.kind != linkOn || two == one {
		t.Fatalf("%+v, %v", two, err)
	}
	sent := func(log *raft.Log, to link) *raft.Log {
		copied := *log
		copied.Extensions = to.encode()
		return &copied
	}
	other := &raft.Log{Index: 1, Term: 2, Data: []byte("another first")}
	otherStart, otherOne, _ := chainEnd{}.after(other)
	_, anew, _ := chainEnd{}.after(second)
	if anew.kind != linkAnew {
		t.Errorf("a link behind nothing is of kind %d", anew.kind)
	}
	for _, test := range []struct {
		name string
		end  chainEnd
		sent *raft.Log
		want error
	}{
		{"the next entry", start, sent(second, two), nil},
		{"the next entry of another log", otherStart, sent(second, two), errContradiction},
		{"behind an installed state", chainEnd{}, sent(second, two), nil},
		{"a new chain behind an installed state", chainEnd{}, sent(second, anew), nil},
		{"a new chain behind a log", start, sent(second, anew), nil},
		{"a new chain that is not the entry's", start, sent(second, link{linkAnew, 5}), errLink},
		{"no kind", start, &raft.Log{Index: 2, Term: 2, Extensions: make([]byte, linkBytes)}, errLink},
		{"too short", start, &raft.Log{Index: 2, Term: 2, Extensions: []byte{1}}, errLink},
	} {
		end, _, err := test.end.after(test.sent)
		if !errors.Is(err, test.want) || (test.want == nil) != (err == nil) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
		if err != nil && end != test.end {
			t.Errorf("%s: the end moved to %+v", test.name, end)
		}
	}
	for _, test := range []struct {
		name         string
		sent, stored *raft.Log
		want         error
	}{
		{"the same", sent(first, one), sent(first, one), nil},
		{"of another term", sent(&raft.Log{Index: 1, Term: 3}, otherOne), sent(first, one), nil},
		{"another entry", sent(other, otherOne), sent(first, one), errContradiction},
		{"another content behind the same link", sent(other, one), sent(first, one), errContradiction},
		{"the same behind another log", sent(second, otherOne), sent(second, two), errContradiction},
		{"without a link", first, sent(first, one), errLink},
	} {
		if err := Contradicts(test.sent, test.stored); !errors.Is(err, test.want) || (test.want == nil) != (err == nil) {
			t.Errorf("%s: error %v, want %v", test.name, err, test.want)
		}
	}
}

// FuzzLink looks for an entry's extensions, as they come from a leader or from the disk,
// that are read as something else than they are.
func FuzzLink(f *testing.F) {
	log := &raft.Log{Index: 7, Term: 2, Data: []byte("data")}
	_, to, err := chainEnd{index: 6, hash: 5}.after(log)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint64(7), uint64(2), []byte("data"), to.encode(), uint64(6), uint64(5))
	_, sealed := seal(log, to)
	f.Add(uint64(7), uint64(2), []byte("data"), sealed.Extensions, uint64(6), uint64(5))
	f.Fuzz(func(t *testing.T, index, term uint64, data, extensions []byte, before, hash uint64) {
		log := raft.Log{Index: index, Term: term, Data: data, Extensions: extensions}
		end := chainEnd{index: before, hash: hash}
		next, to, err := end.after(&log)
		switch {
		case err != nil:
			if !errors.Is(err, errLink) && !errors.Is(err, errContradiction) {
				t.Errorf("error %v has no kind", err)
			}
			if next != end {
				t.Errorf("%v, and the end moved to %+v", err, next)
			}
		case next.index != index || next.hash != to.hash:
			t.Errorf("the end is %+v after entry %d with link %+v", next, index, to)
		case len(extensions) > 0 && !bytes.Equal(to.encode(), extensions):
			t.Errorf("%x is read as %x", extensions, to.encode())
		default:
			// What was made here is what everybody else makes of it.
			sent := log
			sent.Extensions = to.encode()
			if again, carried, err := end.after(&sent); err != nil || again != next || carried != to {
				t.Errorf("carried on: %+v, %+v, %v; it was %+v, %+v", again, carried, err, next, to)
			}
		}
		stored := log
		if err := unseal(&stored); err == nil {
			if to, err := decodeLink(stored.Extensions); err == nil {
				if _, again := seal(&stored, to); !bytes.Equal(again.Extensions, extensions) {
					t.Errorf("%x is a sealed link, and is sealed as %x", extensions, again.Extensions)
				}
			}
		} else if !errors.Is(err, errDamaged) {
			t.Errorf("error %v", err)
		}
	})
}
