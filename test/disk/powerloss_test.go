package disk

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
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
	must(t, r.cluster.Nodes[i].StartUnder(Tracing(trace), "--data-dir", r.dir(i)))
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

// failure is what was wrong after a power failure.
type failure struct {
	place int
	mode  Mode
	err   error
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
	err = back.serving(30 * time.Second)
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

// tryMany tries points until there are enough or too many have failed.
func (r *recording) tryMany(random *rand.Rand, count, failuresMax int, unsynced string) (tried int, failures []failure) {
	points := make(chan point)
	var working sync.WaitGroup
	var mu sync.Mutex
	var enough atomic.Bool
	for range 4 * runtime.GOMAXPROCS(0) { // they wait more than they work
		working.Go(func() {
			for p := range points {
				err := r.try(p)
				mu.Lock()
				tried++
				if os.Getenv("DISK_PROGRESS") != "" && (tried%20 == 0 || err != nil) {
					fmt.Fprintln(os.Stderr, time.Now().Format("15:04:05"), tried, err)
				}
				if err != nil {
					failures = append(failures, failure{place: p.places[0], mode: p.mode, err: err})
					enough.Store(len(failures) >= failuresMax)
				}
				mu.Unlock()
			}
		})
	}
	for range count {
		if enough.Load() {
			break
		}
		points <- r.draw(random, unsynced)
	}
	close(points)
	working.Wait()
	return tried, failures
}

// judge reports failures.
func judge(t *testing.T, what string, tried int, failures []failure, took time.Duration) {
	t.Helper()
	t.Logf("%s: %d power failures, %d wrong, %v", what, tried, len(failures), took.Round(time.Second))
	for _, f := range failures[:min(len(failures), 5)] {
		t.Errorf("%s: at place %d, %v: %v", what, f.place, f.mode, f.err)
	}
}

// TestPowerFailureOfOne lets the power fail at many moments of the life of a single node:
// everything that was acknowledged is there, and the node starts.
func TestPowerFailureOfOne(t *testing.T) {
	needsStrace(t)
	points, lives, each := 120, 2, 2*time.Second
	if full() {
		points, lives, each = 1000, 4, 4*time.Second
	}
	seed := newSeed(t)
	r := recordOne(t, smallPrograms(t), seed, lives, each)
	began := time.Now()
	tried, failures := r.tryMany(drawFrom(seed, 1<<32), points, 20, "")
	judge(t, "one node", tried, failures, time.Since(began))
	t.Logf("synced: %q", r.files[0].Kinds())
}
