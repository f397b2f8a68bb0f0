package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// damage is something that may have become of a file.
type damage struct {
	name string
	do   func(content []byte, random *rand.Rand, other []byte) []byte // nil: the file is gone
}

const pageBytes = 4096

// somewhere draws a place in a file, more often one that holds something.
func somewhere(content []byte, random *rand.Rand) int {
	if len(content) == 0 {
		return 0
	}
	at := random.IntN(len(content))
	for range 200 {
		if content[at] != 0 || random.IntN(100) == 0 {
			break
		}
		at = random.IntN(len(content))
	}
	return at
}

func zero(unit int) func([]byte, *rand.Rand, []byte) []byte {
	return func(content []byte, random *rand.Rand, _ []byte) []byte {
		at := somewhere(content, random) / unit * unit
		clear(content[at:min(len(content), at+unit)])
		return content
	}
}

var damages = []damage{
	{"a flipped bit", func(content []byte, random *rand.Rand, _ []byte) []byte {
		if len(content) > 0 {
			content[somewhere(content, random)] ^= 1 << random.IntN(8)
		}
		return content
	}},
	{"another byte", func(content []byte, random *rand.Rand, _ []byte) []byte {
		if len(content) > 0 {
			content[somewhere(content, random)] += byte(1 + random.IntN(255))
		}
		return content
	}},
	{"a sector of zeros", zero(sectorBytes)},
	{"a page of zeros", zero(pageBytes)},
	{"a page of garbage", func(content []byte, random *rand.Rand, _ []byte) []byte {
		at := somewhere(content, random) / pageBytes * pageBytes
		for i := at; i < min(len(content), at+pageBytes); i++ {
			content[i] = byte(random.Uint32())
		}
		return content
	}},
	{"cut short", func(content []byte, random *rand.Rand, _ []byte) []byte { return content[:somewhere(content, random)] }},
	{"nothing in it", func([]byte, *rand.Rand, []byte) []byte { return []byte{} }},
	{"a foreign file", func(content []byte, random *rand.Rand, _ []byte) []byte {
		foreign := make([]byte, 1+random.IntN(len(content)+1))
		for i := range foreign {
			foreign[i] = byte(random.Uint32())
		}
		return foreign
	}},
	{"the file of another shard", func(_ []byte, _ *rand.Rand, other []byte) []byte { return other }},
	{"gone", nil},
}

// victim is a file that is damaged.
type victim struct {
	kind  string
	path  string // in the data directory
	other string // the same of another shard; "" where there is none
	// free: nothing depends on what is in it, so any damage is recovered from.
	free bool
	// process: only a process of its own is opened on it, since bbolt may panic over it in
	// a goroutine where nothing catches that.
	process bool
}

// segmentsOf are the files of a shard's log, in order.
func segmentsOf(t *testing.T, dir, shard string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "shards", shard, "log", "*.wal"))
	must(t, err)
	slices.Sort(found)
	return found
}

// awaitSealed waits, for a minute at most, until the logs of both shards have a segment that is
// sealed: how long that takes is the machine's to say.
func awaitSealed(t *testing.T, dir string) {
	t.Helper()
	for range 1200 {
		if len(segmentsOf(t, dir, "0000")) >= 2 && len(segmentsOf(t, dir, "0001")) >= 2 {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// victims finds one file of each kind.
func victims(t *testing.T, dir string) []victim {
	t.Helper()
	segments := func(shard string) []string {
		found := segmentsOf(t, dir, shard)
		if len(found) < 2 {
			t.Fatalf("shard %s has the segments %q; a sealed one and the last are needed", shard, found)
		}
		for i := range found {
			var err error
			found[i], err = filepath.Rel(dir, found[i])
			must(t, err)
		}
		return found
	}
	first, second := segments("0000"), segments("0001")
	of := func(name string) (string, string) {
		return filepath.Join("shards", "0000", name), filepath.Join("shards", "0001", name)
	}
	state, otherState := of("state.db")
	index, otherIndex := of("log/wal-meta.db")
	end, otherEnd := of("log/end")
	return []victim{
		{kind: "node.json", path: "node.json"},
		{kind: "the lock", path: "LOCK", free: true},
		{kind: "the state", path: state, other: otherState},
		{kind: "the log's index", path: index, other: otherIndex, process: true},
		{kind: "the end of the log", path: end, other: otherEnd},
		{kind: "a sealed segment", path: first[len(first)-2], other: second[len(second)-2]},
		{kind: "the last segment", path: first[len(first)-1], other: second[len(second)-1]},
	}
}

// damaged is a data directory that is damaged in copies.
type damaged struct {
	*book
	dir string // holds n1/
}

// TestDamagedFiles: whatever becomes of a file, the node says which one and does not
// serve, or it serves everything that was acknowledged. It never serves anything else.
func TestDamagedFiles(t *testing.T) {
	rounds := 1
	if full() {
		rounds = 4
	}
	seed := newSeed(t)
	c := process.Start(t, smallPrograms(t), 1, "--shards", "2", "--free-bytes-min", "0")
	b := &book{shards: 2}
	w := startWorkers(b, (&recording{cluster: c}).conns(), 6, seed)
	n := c.Nodes[0]
	time.Sleep(1500 * time.Millisecond)
	awaitSealed(t, n.Dir)
	must(t, w.stop())
	// Killed: the end of the log is not in the state yet.
	must(t, n.Kill())
	d := &damaged{book: b, dir: filepath.Dir(n.Dir)}
	for i, v := range victims(t, n.Dir) {
		t.Run(strings.ReplaceAll(v.kind, ".", "-"), func(t *testing.T) {
			recovered, refused := 0, 0
			var mu sync.Mutex
			var working sync.WaitGroup
			slots := make(chan struct{}, 4)
			kinds := slices.Clone(damages)
			if !full() {
				random := drawFrom(seed, uint64(i))
				random.Shuffle(len(kinds), func(a, b int) { kinds[a], kinds[b] = kinds[b], kinds[a] })
				kinds = kinds[:2]
			}
			for j, kind := range kinds {
				for round := range rounds {
					random := drawFrom(seed, uint64(i)<<32|uint64(j)<<16|uint64(round))
					slots <- struct{}{}
					working.Go(func() {
						defer func() { <-slots }()
						served, line, err := d.try(n.Name, &v, &kind, random, smallPrograms(t))
						mu.Lock()
						defer mu.Unlock()
						switch {
						case err != nil:
							t.Errorf("%s, %s (round %d): %v", v.kind, kind.name, round, err)
						case served:
							recovered++
						default:
							refused++
							if round == 0 {
								t.Logf("%s: %s", kind.name, line)
							}
						}
						if v.free && !served && err == nil {
							t.Errorf("%s, %s: nothing depends on it, and the node ended: %s", v.kind, kind.name, line)
						}
					})
				}
			}
			working.Wait()
			t.Logf("%d times all there, %d times refused", recovered, refused)
		})
	}
	t.Run("a stranger beside them", func(t *testing.T) {
		for i, path := range strangers {
			served, line, err := d.strange(n.Name, path, drawFrom(seed, 1<<48|uint64(i)))
			switch {
			case err != nil:
				t.Errorf("%s: %v", path, err)
			case !served:
				t.Logf("%s: %s", path, line)
			}
		}
	})
}

// strangers are files and directories that have no business in a data directory.
var strangers = []string{
	"stranger", "shards/stranger", "shards/0009/stranger", "shards/0000/stranger", "shards/0000/log/stranger",
	"shards/0000/log/stranger.wal", "shards/0000/log/00000000000000999999-0000000000000999.wal",
	"shards/0000/snapshots/stranger", "shards/0000/snapshots/incoming-9-9-9", "shards/0000/state.db.new", "shards/0000/state.db.copy-9",
	"node.json.tmp", "shards/0000/log/wal-meta.db.tmp", "shards/0000/log/end.new",
}

// strange puts a stranger into a copy, and looks what becomes of it, as try does.
func (d *damaged) strange(name, path string, random *rand.Rand) (served bool, line string, err error) {
	dir, err := scratch()
	if err != nil {
		return false, "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, name)
	if err := copyTree(filepath.Join(d.dir, name), copied); err != nil {
		return false, "", err
	}
	placed := filepath.Join(copied, path)
	if err := os.MkdirAll(filepath.Dir(placed), 0o700); err != nil {
		return false, "", err
	}
	if err := os.WriteFile(placed, []byte("This file is nobody's.\n"), 0o600); err != nil {
		return false, "", err
	}
	for range 2 {
		if refusal, err := d.serve(dir, random); err != nil || refusal != nil {
			if refusal != nil {
				line = printed(refusal)
			}
			return false, line, d.named(line, dir, &victim{path: path}, err)
		}
	}
	return true, "", nil
}

// try damages a file in a copy and looks what becomes of it: everything is served, or
// the node does not go on and the line says why. Anything else is an error.
func (d *damaged) try(name string, v *victim, kind *damage, random *rand.Rand, programs process.Programs) (served bool, line string, err error) {
	dir, err := scratch()
	if err != nil {
		return false, "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	copied := filepath.Join(dir, name)
	if err := copyTree(filepath.Join(d.dir, name), copied); err != nil {
		return false, "", err
	}
	path := filepath.Join(copied, v.path)
	content, err := os.ReadFile(path)
	if err != nil {
		return false, "", err
	}
	var other []byte
	if v.other != "" {
		if other, err = os.ReadFile(filepath.Join(copied, v.other)); err != nil {
			return false, "", err
		}
	} else {
		other = []byte("The file of another program.\n")
	}
	if err := os.Remove(path); err != nil {
		return false, "", err
	}
	if kind.do != nil {
		if err := writeSparse(path, kind.do(content, random, other)); err != nil {
			return false, "", err
		}
	}
	if v.process {
		line, err := startOn(copied, programs)
		if err != nil || line != "" {
			return false, line, d.named(line, dir, v, err)
		}
	}
	// Twice: what it does in the first life must not make it worse.
	for range 2 {
		refusal, err := d.serve(dir, random)
		if err != nil || refusal != nil {
			if refusal != nil {
				line = printed(refusal)
			}
			return false, line, d.named(line, dir, v, err)
		}
	}
	return true, "", nil
}

// serve opens a directory, and compares what it answers. refusal is why the node does not
// go on; err is what must not be.
func (d *damaged) serve(dir string, random *rand.Rand) (refusal, err error) {
	back, refusal := revive(dir, 1, d.shards, nil)
	if refusal != nil {
		return refusal, nil
	}
	err = back.serving(30 * time.Second)
	if err == nil {
		err = back.retried(func() error { return d.check(back.conns[0], never64, random) })
	}
	refusal = back.failed()
	if refusal != nil {
		err = nil // it has answered nothing else before it ended: see check
	}
	if closing := back.close(); err == nil && refusal == nil {
		err = closing
	}
	return refusal, err
}

// printed is an error as the program prints it: what two shards say that refuse at once is
// one line.
func printed(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// named makes sure that a refusal is one line that says where.
func (d *damaged) named(line, dir string, v *victim, err error) error {
	if err != nil {
		return err
	}
	// A log is refused as a whole, a shard's log and state as what does not belong together.
	where := filepath.Join(dir, "n1")
	if strings.HasPrefix(v.path, "shards") {
		where = filepath.Join(where, "shards", "0000")
	}
	if strings.Count(line, "\n") > 0 || !strings.Contains(line, where) {
		return fmt.Errorf("not one line that names %s: %s", where, line)
	}
	return nil
}

// startOn starts the program on a directory and returns the line that it ends with, or ""
// if it serves.
func startOn(dir string, programs process.Programs) (line string, err error) {
	result, err := process.Run(3*time.Second, programs.Coordinator, "--data-dir", dir, "--listen", "127.0.0.1:0", "--free-bytes-min", "0")
	if err != nil { // it did not end: it serves
		if strings.Contains(result.Stderr, "every shard has a leader") {
			return "", nil
		}
		return "", fmt.Errorf("it neither serves nor ends: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(result.Stderr), "\n")
	line = lines[len(lines)-1]
	if result.Code != 1 || !strings.HasPrefix(line, "coordinator: ") {
		return line, fmt.Errorf("exit code %d: %s", result.Code, result.Stderr)
	}
	return line, nil
}

// copyTree copies files and directories.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, inside)
		if entry.IsDir() {
			return os.MkdirAll(target, 0o700)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return writeSparse(target, content)
	})
}
