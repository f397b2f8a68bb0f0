package raftfsm

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/admission"
)

// The golden log was written by the first version of the program. Each line is an
// entry: index, term and bytes. It must be readable for good, and come to the
// answers in the file beside it.
const (
	goldenLog     = "log-v1.txt"
	goldenAnswers = "log-v1.answers.txt"
)

var writeGolden = flag.Bool("write-golden", false, "write the golden log anew; only ever for a new version of it")

func goldenLines(t testing.TB) (entries [][]byte) {
	t.Helper()
	for _, log := range readGolden(t) {
		entries = append(entries, log.Data)
	}
	return entries
}

func readGolden(t testing.TB) (logs []*raft.Log) {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", goldenLog))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var index, term uint64
		var encoded string
		if _, err := fmt.Sscan(lines.Text(), &index, &term, &encoded); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		data, err := hex.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		logs = append(logs, &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return logs
}

func TestGoldenLogReplays(t *testing.T) {
	path := filepath.Join("testdata", goldenAnswers)
	if *writeGolden {
		writeGoldenLog(t)
	}
	m := newMachine(t, t.TempDir())
	defer m.close(t)
	var got bytes.Buffer
	for _, log := range readGolden(t) {
		m.answerTerm.Store(log.Term)
		entry, err := DecodeEntry(log.Data)
		if err != nil {
			t.Fatalf("entry %d: %v", log.Index, err)
		}
		if again, err := entry.Encode(); err != nil || !bytes.Equal(again, log.Data) {
			t.Fatalf("entry %d: something was lost in decoding it: %v", log.Index, err)
		}
		result := m.apply(t, log)
		fmt.Fprintf(&got, "%d: stale %v, noted %v, now %v, reclaimed %d\n",
			log.Index, result.Stale, time.Duration(result.Noted), time.Duration(result.Now), result.Reclaimed)
		for i, answer := range result.Answers {
			fmt.Fprintf(&got, "  %T %s: %s\n", entry.Commands[i], entry.Commands[i].On().Key, describe(answer))
		}
	}
	if *writeGolden {
		if err := os.WriteFile(path, got.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Bytes(), want) {
		wanted := strings.Split(string(want), "\n")
		for i, line := range strings.Split(got.String(), "\n") {
			if i >= len(wanted) || line != wanted[i] {
				t.Fatalf("line %d\ngot  %s\nwant %s", i+1, line, wanted[min(i, len(wanted)-1)])
			}
		}
		t.Fatal("the answers end early")
	}
}

// describe writes what an answer says, by the contract's names.
func describe(a admission.Answer) string {
	return fmt.Sprintf("refusal %q, outcome %v, repeated %v, late %v, token %v, fence %d, attempt %d, owner %q, since %v, until %v, response %q",
		a.Refusal, a.Outcome, a.Repeated, a.Late, a.Token, a.Fence, a.Attempt, a.Owner,
		time.Duration(a.Since), time.Duration(a.Deadline), a.Response.Stored)
}

// writeGoldenLog writes a log with every kind of entry and every field.
func writeGoldenLog(t *testing.T) {
	held := reserve(1)
	held.OnLapse, held.PendingTTL, held.Retention = admission.Hold, time.Second, 2*time.Second
	full := reserve(2)
	full.StorageFull = true
	quota := reserve(3)
	quota.RecordsMax = 1
	unwanted := reserve(4)
	unwanted.WantedUntil = 1
	late := commit(0, admission.Token{Fence: 1, Attempt: attempt(0)})
	late.Retention = 90 * time.Minute
	again := reserve(5)
	again.Attempt = attempt(50)
	var out bytes.Buffer
	for i, step := range []struct {
		term  uint64
		entry Entry
	}{
		{2, Entry{Term: 2, LeaderStart: true}},
		{2, Entry{Term: 2, Elapsed: 1500 * time.Millisecond, WallNanos: 1_700_000_000_000_000_000, Commands: commands(
			reserve(0), held, full, quota, unwanted, reserve(0))}},
		{2, Entry{Term: 2, Elapsed: 2 * time.Second, WallNanos: 1_700_000_001_000_000_000, Commands: commands(
			late, late, reserve(0), reserve(5))}},
		{2, Entry{Term: 2, Elapsed: 3 * time.Second, Reclaim: 5}},
		{3, Entry{Term: 2, Elapsed: 4 * time.Second, Commands: commands(reserve(6))}},
		{3, Entry{Term: 3, LeaderStart: true}},
		{3, Entry{Term: 3, LeaderStart: true}},
		{3, Entry{Term: 3, Elapsed: time.Second, WallNanos: -1, Commands: commands(
			admission.Extend{Identity: identity(5), Token: admission.Token{Fence: 6, Attempt: attempt(5)}, PendingTTL: 3 * time.Minute, Span: time.Hour},
			admission.Release{Identity: identity(5), Token: admission.Token{Fence: 6, Attempt: attempt(5)}, Reason: "did nothing"},
			again,
			admission.Resolve{Identity: identity(1), Revision: 4, Applied: true, Response: response(1), Note: "looked it up"},
			admission.Resolve{Identity: identity(1), Revision: 4, Note: "or not"},
			admission.Purge{Identity: identity(5), Fence: 11, Force: true},
			admission.Purge{Identity: identity(0), Revision: 5},
		)}},
		{3, Entry{Term: 3, Elapsed: 48 * time.Hour, Reclaim: 100}},
	} {
		encoded, err := step.entry.Encode()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&out, "%d %d %x\n", i+2, step.term, encoded)
	}
	if err := os.MkdirAll("testdata", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join("testdata", goldenLog), out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}
