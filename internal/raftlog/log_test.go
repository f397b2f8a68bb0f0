package raftlog

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/store"
)

// testOptions are those of a log that may be new, and of which nobody is told anything.
func testOptions() Options {
	return Options{Logger: slog.New(slog.DiscardHandler), WALLogger: hclog.NewNullLogger(), Create: true}
}

// ofBefore are those of a log that must be there.
func ofBefore() Options {
	options := testOptions()
	options.Create = false
	return options
}

func entryData(index uint64) []byte { return fmt.Appendf(nil, "entry number %d of the log", index) }

// fillLog stores entries one by one, so that each is a batch of its own.
func fillLog(t *testing.T, l *Log, last uint64) {
	t.Helper()
	for index := uint64(1); index <= last; index++ {
		if err := l.StoreLog(&raft.Log{Index: index, Term: 2, Data: entryData(index)}); err != nil {
			t.Fatal(err)
		}
	}
}

// sameEntry reports whether two entries are the same to whoever reads them. Whether a
// moment has a monotonic reading is not.
func sameEntry(a, b *raft.Log) bool {
	return a.Index == b.Index && a.Term == b.Term && a.Type == b.Type && bytes.Equal(a.Data, b.Data) &&
		bytes.Equal(a.Extensions, b.Extensions) && a.AppendedAt.Equal(b.AppendedAt)
}

// The log tells of entries that this replica makes as the leader, once it knows what they
// follow, before they are written, and as they can be read later.
func TestTheLogTellsAheadOfItsOwnEntries(t *testing.T) {
	var l *Log
	var told []string
	var sent []*raft.Log
	options := testOptions()
	options.Ahead = func(before store.Position, entries []*raft.Log) {
		told = append(told, fmt.Sprintf("%d of term %d behind %d of term %d", entries[0].Index, entries[0].Term, before.Index, before.Term))
		sent = append(sent, entries...)
		for _, entry := range entries {
			if err := l.GetLog(entry.Index, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
				t.Errorf("entry %d is in the log before it was told of: %v", entry.Index, err)
			}
		}
	}
	dir := t.TempDir()
	open := func() *Log {
		t.Helper()
		opened, err := Open(dir, options)
		if err != nil {
			t.Fatal(err)
		}
		return opened
	}
	l = open()
	expect := func(want ...string) {
		t.Helper()
		if fmt.Sprint(told) != fmt.Sprint(want) {
			t.Errorf("told of %q, want %q", told, want)
		}
		for _, entry := range sent {
			var read raft.Log
			if err := l.GetLog(entry.Index, &read); err != nil || !sameEntry(&read, entry) {
				t.Errorf("sent %+v, and the log holds %+v: %v", entry, read, err)
			}
		}
		told, sent = nil, nil
	}
	own := func(term, from, to uint64) (logs []*raft.Log) {
		for index := from; index <= to; index++ {
			logs = append(logs, &raft.Log{Index: index, Term: term, Data: []byte{byte(index)}})
		}
		return logs
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(l.StoreLogs(own(1, 1, 2)))
	expect("1 of term 1 behind 0 of term 0") // nothing: the transport sends nothing behind that
	must(l.StoreLogs(own(1, 3, 5)))
	expect("3 of term 1 behind 2 of term 1")
	must(l.StoreLogs(own(2, 6, 6)))
	expect("6 of term 2 behind 5 of term 1")

	// What a leader sends is not sent on.
	from := openTestLog(t, t.TempDir())
	must(from.StoreLogs(own(3, 7, 7)))
	var theirs raft.Log
	must(from.GetLog(7, &theirs))
	must(l.StoreLogs([]*raft.Log{&theirs}))
	expect()
	must(from.Close())
	must(l.StoreLogs(own(4, 8, 8)))
	expect("8 of term 4 behind 7 of term 3")

	// Where the end is another than that of the last append, its term is not known.
	must(l.DeleteRange(7, 8))
	must(l.StoreLogs(own(5, 7, 7)))
	expect("7 of term 5 behind 6 of term 0")
	must(l.DeleteRange(1, 3)) // the beginning changes nothing
	must(l.StoreLogs(own(5, 8, 8)))
	expect("8 of term 5 behind 7 of term 5")
	must(l.Close())
	options.Create = false
	l = open()
	must(l.StoreLogs(own(6, 9, 9)))
	expect("9 of term 6 behind 8 of term 0")
	if err := l.StoreLogs([]*raft.Log{{Index: 10, Term: 6, Extensions: bytes.Repeat([]byte{9}, linkBytes)}}); err == nil {
		t.Error("an entry with a malformed link was taken")
	}
	expect()
	must(l.Close())
}
