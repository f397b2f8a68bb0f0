package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/test/process"
)

// recording is what nodes did to their directories, and what callers were told meanwhile.
type recording struct {
	*book
	cluster *process.Cluster
	files   []*Files // of each node
	peers   []peer.Listed
	lives   int
	tracing []string // more options of strace
}

// startRecording prepares nodes whose every life is traced.
func startRecording(t *testing.T, programs process.Programs, nodes, shards int) *recording {
	t.Helper()
	r := &recording{
		book:    &book{shards: shards},
		cluster: process.New(t, programs, nodes, "--shards", fmt.Sprint(shards), "--balance-every", "0s", "--free-bytes-min", "0"),
	}
	for _, n := range r.cluster.Nodes {
		// Not even the data directory is there.
		above := filepath.Join(filepath.Dir(n.Dir), "of-"+n.Name)
		must(t, os.Mkdir(above, 0o700))
		files, err := NewFiles(above)
		must(t, err)
		r.files = append(r.files, files)
		if nodes > 1 {
			r.peers = append(r.peers, peer.Listed{Name: n.Name, Address: n.Peer})
		}
	}
	return r
}

// dir is where a node's data is.
func (r *recording) dir(i int) string {
	return filepath.Join(r.files[i].root, r.cluster.Nodes[i].Name)
}

func (r *recording) trace(i, life int) string {
	return fmt.Sprintf("%s.trace-%d", r.files[i].root, life)
}

// start starts a node's next life.
func (r *recording) start(t *testing.T, i int) (trace string, pid int) {
	t.Helper()
	r.lives++
	trace = r.trace(i, r.lives)
	must(t, r.cluster.Nodes[i].StartUnder(Tracing(trace, r.tracing...), "--data-dir", r.dir(i)))
	return trace, r.cluster.Nodes[i].PID()
}

// ended reads the trace of a life that is over.
func (r *recording) ended(t *testing.T, i int, trace string, pid int) {
	t.Helper()
	must(t, Ended(trace, pid, time.Minute))
	must(t, r.files[i].Add(trace))
	must(t, os.Remove(trace))
}

func (r *recording) conns() []grpc.ClientConnInterface {
	var conns []grpc.ClientConnInterface
	for _, n := range r.cluster.Nodes {
		conns = append(conns, n.Conn())
	}
	return conns
}

// recordOne records one node: founded, killed under load a few times, stopped under load.
func recordOne(t *testing.T, programs process.Programs, seed uint64, lives int, each time.Duration) *recording {
	t.Helper()
	r := startRecording(t, programs, 1, 2)
	n := r.cluster.Nodes[0]
	var w *workers
	for life := range lives {
		trace, pid := r.start(t, 0)
		if w == nil {
			w = startWorkers(r.book, r.conns(), 6, seed)
		}
		must(t, n.Serving(time.Minute))
		time.Sleep(each)
		if life == lives-1 {
			must(t, r.cutOnce(0, time.Minute))
			must(t, w.stop())
			code, err := n.Stop()
			if err != nil || code != 0 {
				t.Fatalf("the node stopped with %d, %v", code, err)
			}
		} else {
			must(t, n.Kill())
		}
		r.ended(t, 0, trace, pid)
	}
	t.Logf("recorded: %d lives, %d calls, %d changes and syncs of files", lives, w.calls.Load(), len(r.files[0].steps))
	return r
}

// cutOnce waits until some log of a node has been cut: its first segment is gone.
func (r *recording) cutOnce(i int, within time.Duration) error {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		logs, err := filepath.Glob(filepath.Join(r.dir(i), "shards", "*", "log"))
		if err != nil {
			return err
		}
		for _, dir := range logs {
			first, err := filepath.Glob(filepath.Join(dir, "00000000000000000001-*.wal"))
			if err != nil {
				return err
			}
			if len(first) == 0 {
				return nil
			}
		}
	}
	return fmt.Errorf("no log was cut within %v", within)
}

// failure is what was wrong after a power failure.
type failure struct {
	point
	err error
}

// point is one power failure of all nodes at once.
type point struct {
	seed     uint64
	at       int64
	places   []int
	mode     Mode
	unsynced string
	again    bool // start once more after that, and look again
}

// draw draws a moment: any, one of the first ones, or one right after an answer.
func (r *recording) draw(random *rand.Rand, unsynced string) point {
	p := point{seed: random.Uint64(), mode: Mode(random.IntN(int(modes))), unsynced: unsynced, again: random.IntN(4) == 0}
	files := r.files[random.IntN(len(r.files))]
	steps := files.Steps()
	var place int
	switch random.IntN(8) {
	case 7: // soon after a sync that is taken for never made
		if ends := files.syncsOf(unsynced); unsynced != "" && len(ends) > 0 {
			at, _ := slices.BinarySearch(steps, ends[random.IntN(len(ends))])
			place = steps[min(len(steps)-1, at+random.IntN(20))]
			break
		}
		place = steps[random.IntN(len(steps))]
	case 0:
		place = steps[random.IntN(min(len(steps), 250))]
	case 1, 2, 3:
		if answered := r.anAnswer(random); answered != 0 {
			place = files.Place(answered + random.Int64N(300))
			break
		}
		fallthrough
	default:
		place = steps[random.IntN(len(steps))]
	}
	p.at = files.Time(place)
	for _, f := range r.files {
		if f == files {
			p.places = append(p.places, place)
		} else {
			p.places = append(p.places, f.Place(p.at))
		}
	}
	return p
}

// syncsOf returns the places right after the syncs of a kind of file.
func (f *Files) syncsOf(kind string) (ends []int) {
	for _, n := range f.inodes {
		for _, s := range n.syncs {
			if s.kind == kind && s.exit != never {
				ends = append(ends, s.exit+1)
			}
		}
	}
	return ends
}

// anAnswer returns when some call was answered, or 0.
func (r *recording) anAnswer(random *rand.Rand) int64 {
	page := r.pages[random.IntN(len(r.pages))]
	if len(page.promises) == 0 {
		return 0
	}
	return page.promises[random.IntN(len(page.promises))].answered
}

// try lets the power fail and looks for everything that had been acknowledged.
func (r *recording) try(p point) (err error) {
	dir, err := scratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	random := drawFrom(p.seed, 0)
	for i, f := range r.files {
		if err := f.Rebuild(dir, Cut{Place: p.places[i], Mode: p.mode, Random: random, Unsynced: p.unsynced}); err != nil {
			return err
		}
	}
	lives := 1
	if p.again {
		lives = 2
	}
	for range lives {
		if err := r.look(dir, p.at, random); err != nil {
			return err
		}
	}
	return nil
}

// look starts all nodes on what is in a directory, and checks what they answer.
func (r *recording) look(dir string, at int64, random *rand.Rand) error {
	back, err := revive(dir, len(r.files), r.shards, r.peers)
	if err != nil {
		return err
	}
	err = back.serving(time.Minute)
	if err == nil {
		err = back.retried(func() error { return r.check(back.conns[0], at, random) })
	}
	if failed := back.failed(); failed != nil {
		err = failed
	}
	if closing := back.close(); err == nil && closing != nil {
		err = fmt.Errorf("stopping: %w", closing)
	}
	if err != nil && os.Getenv("DISK_LOG") != "" {
		err = fmt.Errorf("%w\n%s", err, back.said())
	}
	return err
}

// tryMany tries points until too many have failed.
func (r *recording) tryMany(points []point, failuresMax int) (tried int, failures []failure) {
	queue := make(chan point)
	var working sync.WaitGroup
	var mu sync.Mutex
	var enough atomic.Bool
	for range 4 * runtime.GOMAXPROCS(0) { // they wait more than they work
		working.Go(func() {
			for p := range queue {
				if enough.Load() {
					continue
				}
				err := r.try(p)
				mu.Lock()
				tried++
				if err != nil {
					failures = append(failures, failure{point: p, err: err})
					enough.Store(len(failures) >= failuresMax)
				}
				if os.Getenv("DISK_PROGRESS") != "" && (tried%20 == 0 || err != nil) {
					fmt.Fprintln(os.Stderr, time.Now().Format("15:04:05"), tried, p.places, p.mode, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, p := range points {
		queue <- p
	}
	close(queue)
	working.Wait()
	return tried, failures
}

// recordThree records three nodes: founded, one of them away until it is sent the state
// instead of the log, all three killed under load, stopped.
func recordThree(t *testing.T, programs process.Programs, seed uint64, each time.Duration) *recording {
	t.Helper()
	r := startRecording(t, programs, 3, 1)
	traces, pids := make([]string, 3), make([]int, 3)
	start := func(i int) { traces[i], pids[i] = r.start(t, i) }
	kill := func(i int) {
		must(t, r.cluster.Nodes[i].Kill())
		r.ended(t, i, traces[i], pids[i])
	}
	for i := range r.cluster.Nodes {
		start(i)
	}
	must(t, r.cluster.Serving(time.Minute))
	w := startWorkers(r.book, r.conns(), 8, seed)
	time.Sleep(each / 2)

	leader, err := r.cluster.LeaderOfMost(time.Minute)
	must(t, err)
	away := slices.IndexFunc(r.cluster.Nodes, func(n *process.Node) bool { return n != leader })
	kill(away)
	// Until the log is cut behind where it is.
	calls := w.calls.Load()
	for deadline := time.Now().Add(time.Minute); w.calls.Load() < calls+6000; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("only %d calls in a minute", w.calls.Load()-calls)
		}
	}
	start(away)
	must(t, r.cluster.Nodes[away].Said("installed another node's state", time.Minute))
	time.Sleep(each / 2)
	for i := range r.cluster.Nodes {
		must(t, r.cluster.Nodes[i].Kill())
	}
	for i := range r.cluster.Nodes {
		r.ended(t, i, traces[i], pids[i])
	}
	for i := range r.cluster.Nodes {
		start(i)
	}
	must(t, r.cluster.Serving(time.Minute))
	time.Sleep(each / 2)
	must(t, w.stop())
	for i, n := range r.cluster.Nodes {
		code, err := n.Stop()
		if err != nil || code != 0 {
			t.Fatalf("%s stopped with %d, %v", n.Name, code, err)
		}
		r.ended(t, i, traces[i], pids[i])
	}
	t.Logf("recorded: 3 nodes, %d calls, %d, %d and %d changes and syncs of files", w.calls.Load(),
		len(r.files[0].steps), len(r.files[1].steps), len(r.files[2].steps))
	return r
}

// TestOneNode: whenever the power of a single node fails, or it is killed, everything
// that was acknowledged is there, and the node starts.
func TestOneNode(t *testing.T) {
	needsStrace(t)
	points, lives, each := 30, 2, 1200*time.Millisecond
	if full() {
		points, lives, each = 1000, 4, 3*time.Second
	}
	seed := newSeed(t)
	random := drawFrom(seed, 1<<32)
	r := recordOne(t, smallPrograms(t), seed, lives, each)
	t.Run("power failure", func(t *testing.T) { r.powerFailures(t, random, points) })
	t.Run("killed between two steps", func(t *testing.T) { r.everyStep(t, random) })
	t.Run("missing sync", func(t *testing.T) { r.missingSyncs(t, random) })
}

// TestSlowBeginning: the power fails while a node is founding a cluster on a disk that is
// slow to sync directories. As soon as it serves, what it serves from is there for good.
func TestSlowBeginning(t *testing.T) {
	needsStrace(t)
	t.Parallel() // it waits more than it works
	seed := newSeed(t)
	random := drawFrom(seed, 1<<32)
	r := startRecording(t, smallPrograms(t), 1, 2)
	r.tracing = []string{"-e", "inject=fsync:delay_enter=300ms"}
	trace, pid := r.start(t, 0)
	w := startWorkers(r.book, r.conns(), 4, seed)
	must(t, r.cluster.Nodes[0].Serving(time.Minute))
	time.Sleep(1500 * time.Millisecond)
	must(t, w.stop())
	code, err := r.cluster.Nodes[0].Stop()
	if err != nil || code != 0 {
		t.Fatalf("the node stopped with %d, %v", code, err)
	}
	r.ended(t, 0, trace, pid)
	steps := r.files[0].Steps()
	var points []point
	count := 15
	if full() {
		count = 60
	}
	for i := range count {
		p := r.pointAt(0, steps[random.IntN(len(steps))])
		if early := r.pages[random.IntN(min(len(r.pages), 40))]; i%2 == 0 { // one of the first answers
			p = r.pointAt(0, r.files[0].Place(early.promises[0].answered))
		}
		p.seed, p.mode = random.Uint64(), Mode(random.IntN(int(modes)))
		points = append(points, p)
	}
	r.judge(t, points)
}

// TestThreeNodes: the same for three nodes whose power fails at the same moment. Each of
// them may have lost what it had not synced, and a majority has not.
func TestThreeNodes(t *testing.T) {
	needsStrace(t)
	points, each := 6, time.Second
	if full() {
		points, each = 150, 4*time.Second
	}
	seed := newSeed(t)
	random := drawFrom(seed, 1<<32)
	r := recordThree(t, smallPrograms(t), seed, each)
	t.Run("power failure", func(t *testing.T) { r.powerFailures(t, random, points) })
	if !full() {
		return
	}
	t.Run("killed between two steps", func(t *testing.T) { r.everyStep(t, random) })
	t.Run("missing sync", func(t *testing.T) { r.missingSyncs(t, random) })
}

func (r *recording) powerFailures(t *testing.T, random *rand.Rand, count int) {
	points := make([]point, count)
	for i := range points {
		points[i] = r.draw(random, "")
	}
	r.judge(t, points)
}

// judge tries points and reports what was wrong.
func (r *recording) judge(t *testing.T, points []point) {
	t.Helper()
	began := time.Now()
	tried, failures := r.tryMany(points, 20)
	t.Logf("%d moments, %d wrong, %v", tried, len(failures), time.Since(began).Round(time.Second))
	for _, f := range failures[:min(len(failures), 5)] {
		t.Errorf("at place %d, %v: %v", f.places, f.mode, f.err)
	}
}

// around returns the steps around those changes of names that match.
func (r *recording) around(match func(file *Files, c *nameChange) bool, reach int) (points []point) {
	for i, f := range r.files {
		steps := f.Steps()
		for _, c := range f.names {
			if c.entry < 0 || !match(f, &c) {
				continue
			}
			at, _ := slices.BinarySearch(steps, c.entry)
			for _, place := range steps[max(0, at-reach):min(len(steps), at+reach)] {
				points = append(points, r.pointAt(i, place))
			}
		}
	}
	return points
}

// pointAt is a kill -9 of all nodes at a place of one of them.
func (r *recording) pointAt(node, place int) point {
	p := point{seed: uint64(place), at: r.files[node].Time(place), mode: KeepAll, again: place%4 == 0}
	for i, f := range r.files {
		if i == node {
			p.places = append(p.places, place)
		} else {
			p.places = append(p.places, f.Place(p.at))
		}
	}
	return p
}

// everyStep ends the processes between every two calls around each thing that takes
// several steps.
func (r *recording) everyStep(t *testing.T, random *rand.Rand) {
	at := func(suffix string, appears bool) func(*Files, *nameChange) bool {
		return func(_ *Files, c *nameChange) bool {
			if appears {
				return c.to != nil && strings.HasSuffix(c.toName, suffix)
			}
			return c.to == nil && strings.HasSuffix(c.fromName, suffix)
		}
	}
	kinds := []struct {
		name  string
		match func(*Files, *nameChange) bool
		reach int
	}{
		{"found", at("node.json", true), 30},
		{"rotate", at(".wal", true), 12},
		{"snapshot and truncate", at(".wal", false), 15},
		{"restore", func(_ *Files, c *nameChange) bool {
			return strings.HasPrefix(c.fromName, "incoming-") && c.toName == "state.db"
		}, 60},
	}
	for _, kind := range kinds {
		if restores := kind.name == "restore"; restores != (len(r.files) > 1) {
			continue // a single node is sent nothing, and does all else just as three do
		}
		t.Run(kind.name, func(t *testing.T) {
			points := r.around(kind.match, kind.reach)
			if len(points) == 0 {
				t.Fatal("the recording has none")
			}
			r.judge(t, few(points, random, 5, 130))
		})
	}
	if len(r.files) > 1 {
		return
	}
	t.Run("flush", func(t *testing.T) {
		var points []point
		for i, f := range r.files {
			steps := f.Steps()
			from := random.IntN(max(1, len(steps)-200))
			for _, place := range steps[from:min(len(steps), from+200)] {
				points = append(points, r.pointAt(i, place))
			}
		}
		r.judge(t, few(points, random, 5, 200))
	})
}

// few returns all points, or a run of them where those are too many.
func few(points []point, random *rand.Rand, reduced, most int) []point {
	if !full() {
		most = reduced
	}
	if len(points) <= most {
		return points
	}
	from := random.IntN(len(points) - most + 1)
	return points[from : from+most]
}

// needless are the syncs that nothing which was acknowledged depends on, with the reason.
var needless = map[string]string{
	"state.db.copy-*": "a copy is only read by the process that sends it, and one that is left over is deleted at the next start",
	"log/end":         "an older end is a weaker check of the log, nothing else; cutting the log back needs it, where a new leader overrules entries",
}

// missingSyncs proves that the test can fail: without the syncs of any one kind of file
// something is lost, or the node does not start.
func (r *recording) missingSyncs(t *testing.T, random *rand.Rand) {
	kinds := r.kinds()
	if !full() {
		random.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
		kinds = kinds[:2]
	}
	const most = 400
	for _, kind := range kinds {
		t.Run(strings.ReplaceAll(kind, "/", "."), func(t *testing.T) {
			if why := needless[kind]; why != "" {
				t.Skip(why)
			}
			points := make([]point, most)
			for i := range points {
				points[i] = r.draw(random, kind)
			}
			tried, failures := r.tryMany(points, 1)
			if len(failures) == 0 {
				t.Fatalf("no sync of %s was ever missed, in %d power failures", kind, tried)
			}
			t.Logf("missed after %d power failures: %s", tried, firstLine(failures[0].err))
		})
	}
}

// kinds are the kinds of files that any node synced.
func (r *recording) kinds() (kinds []string) {
	for _, f := range r.files {
		kinds = append(kinds, f.Kinds()...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds)
}

// TestMissingSyncInTheProgram: a program that leaves out the sync of its log is found out
// by the same power failures that find nothing in the real one.
func TestMissingSyncInTheProgram(t *testing.T) {
	if !full() {
		t.Skip("set COORDINATOR_FAULT=1: it builds another program")
	}
	needsStrace(t)
	careless := append(slices.Clone(small), edit{
		"internal/raftlog/sync_linux.go",
		"flags := os.O_WRONLY | syscall.O_DSYNC",
		"flags := os.O_WRONLY",
	})
	programs, err := buildWith(filepath.Join(built.dir, "careless"), careless)
	must(t, err)
	seed := newSeed(t)
	random := drawFrom(seed, 1<<32)
	r := recordOne(t, programs, seed, 2, 2*time.Second)
	points := make([]point, 400)
	for i := range points {
		points[i] = r.draw(random, "")
	}
	tried, failures := r.tryMany(points, 1)
	if len(failures) == 0 {
		t.Fatalf("not found out in %d power failures", tried)
	}
	t.Logf("found out after %d power failures: %s", tried, firstLine(failures[0].err))
}
