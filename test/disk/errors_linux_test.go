package disk

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/process"
)

const (
	// servesWithin is how long the two others may be without a leader once a node is gone.
	servesWithin = 10 * time.Second
	// hungWithin is how long a hung disk may keep a process: the watchdog's ten ticks, and one
	// until the first. What is added is for a busy machine.
	hungWithin = 11*time.Second + 4*time.Second
	// failedWithin is how long a failed disk may.
	failedWithin = 20 * time.Second
)

// diskFault is something that a disk does to one kind of file.
type diskFault struct {
	name  string
	files []string // below the data directory; * is any name
	Fault
	ends bool          // the process ends
	in   time.Duration // within that
	says string        // in its last line
}

var diskFaults = []diskFault{
	{"write of the log fails", []string{"shards/0000/log/*.wal"}, Fault{Calls: "pwrite64", Does: "error=EIO"}, true, failedWithin, "input/output error"},
	{"no block of the log can be written", []string{"shards/0000/log/*.wal"}, Fault{Calls: "pwrite64", Does: "error=EINVAL"}, true, failedWithin, "invalid argument"},
	{"no space for the log", nil, Fault{Calls: "fallocate", Does: "error=ENOSPC"}, true, failedWithin, "no space left on device"},
	{"write of the end of the log fails", []string{"shards/0000/log/end"}, Fault{Calls: "pwrite64", Does: "error=EIO"}, true, failedWithin, "input/output error"},
	{"write of the log's index fails", []string{"shards/0000/log/wal-meta.db"}, Fault{Calls: "pwrite64", Does: "error=EIO"}, true, failedWithin, "input/output error"},
	{"sync of the log's index fails", []string{"shards/0000/log/wal-meta.db"}, Fault{Calls: "fdatasync,fsync", Does: "error=EIO"}, true, failedWithin, "input/output error"},
	{"write of the state fails", []string{"shards/0000/state.db"}, Fault{Calls: "pwrite64", Does: "error=EIO"}, true, failedWithin, "input/output error"},
	{"no space for the state", []string{"shards/0000/state.db"}, Fault{Calls: "pwrite64", Does: "error=ENOSPC"}, true, failedWithin, "no space left on device"},
	{"sync of the state fails", []string{"shards/0000/state.db"}, Fault{Calls: "fdatasync,fsync", Does: "error=EIO"}, true, failedWithin, "input/output error"},
	{"everything is slow", nil, Fault{Calls: "pwrite64,fdatasync,fsync", Does: "delay_enter=40ms"}, false, 0, ""},
	{"write of the log hangs", []string{"shards/0000/log/*.wal"}, Fault{Calls: "pwrite64", Does: "delay_enter=60s"}, true, hungWithin, "disk hung"},
	{"sync of the state hangs", []string{"shards/0000/state.db"}, Fault{Calls: "fdatasync,fsync", Does: "delay_enter=60s"}, true, hungWithin, "disk hung"},
	{"write of the log's index hangs", []string{"shards/0000/log/wal-meta.db"}, Fault{Calls: "pwrite64", Does: "delay_enter=60s"}, true, hungWithin, "disk hung"},
}

// TestFailingDisk: the disk under the leader fails, hangs or is slow. A node that cannot
// write ends with one clear line, the two others serve, and afterwards it catches up.
func TestFailingDisk(t *testing.T) {
	needsStrace(t)
	seed := newSeed(t)
	random := drawFrom(seed, 0)
	faults := slices.Clone(diskFaults)
	if !full() {
		random.Shuffle(len(faults), func(i, j int) { faults[i], faults[j] = faults[j], faults[i] })
		faults = faults[:2]
	}
	c := process.Start(t, smallPrograms(t), 3, "--shards", "1", "--balance-every", "0s", "--free-bytes-min", "0")
	b := &book{shards: 1}
	r := &recording{book: b, cluster: c}
	w := startWorkers(b, r.conns(), 4, seed)
	for i, fault := range faults {
		t.Run(fault.name, func(t *testing.T) { befall(t, c, &fault, i, w) })
		if t.Failed() {
			break
		}
	}
	must(t, w.stop())
	if !t.Failed() {
		must(t, caughtUp(c, time.Minute)) // nothing changes any more: to the same state
	}
	must(t, b.check(c.Nodes[0].Conn(), never64, random))
	t.Logf("%d calls answered", w.calls.Load())
}

func befall(t *testing.T, c *process.Cluster, fault *diskFault, number int, w *workers) {
	t.Helper()
	victim, err := c.LeaderOfMost(time.Minute)
	must(t, err)
	injected := fault.Fault
	for _, pattern := range fault.files {
		paths, err := filepath.Glob(filepath.Join(victim.Dir, pattern))
		must(t, err)
		injected.Paths = append(injected.Paths, paths...)
	}
	injection, err := Inject(victim.PID(), injected, filepath.Join(t.TempDir(), fmt.Sprintf("inject-%d", number)))
	must(t, err)
	defer func() { must(t, injection.End()) }()
	began, said := time.Now(), len(victim.Output())
	if !fault.ends {
		calls := w.calls.Load()
		time.Sleep(4 * time.Second)
		if !victim.Running() {
			t.Errorf("it has ended: %s", lastLine(victim))
		}
		t.Logf("%d calls answered in %v", w.calls.Load()-calls, time.Since(began).Round(time.Millisecond))
		if w.calls.Load() == calls {
			t.Error("no call was answered")
		}
		return
	}
	if strings.HasPrefix(fault.Does, "delay_enter") {
		// A call that hangs keeps what is left of a process that has ended: here strace, else
		// the kernel.
		for !strings.Contains(victim.Output()[said:], "disk hung") {
			if time.Since(began) > fault.in {
				t.Fatalf("%s has not noticed within %v", victim.Name, fault.in)
			}
			time.Sleep(10 * time.Millisecond)
		}
		injection.Abandon()
	}
	code, err := victim.Wait(fault.in)
	ended := time.Now()
	must(t, err)
	line := lastLine(victim)
	t.Logf("ended with %d after %v: %s", code, ended.Sub(began).Round(time.Millisecond), line)
	if code != 1 || !strings.HasPrefix(line, "coordinator: ") || !strings.Contains(line, victim.Dir) || !strings.Contains(line, fault.says) {
		t.Errorf("exit code %d, and the last line is %q; want 1, and one that names %s and says %q", code, line, victim.Dir, fault.says)
	}
	served, err := servedSince(c, victim, ended)
	must(t, err)
	t.Logf("the two others serve %v after that", served.Round(time.Millisecond))
	must(t, injection.End())
	must(t, victim.Start())
	must(t, caughtUp(c, time.Minute))
}

// lastLine is the last line that a node has printed.
func lastLine(n *process.Node) string {
	lines := strings.Split(strings.TrimSpace(n.Output()), "\n")
	return lines[len(lines)-1]
}

// servedSince waits until a new key of the one shard was granted by a node that is left.
func servedSince(c *process.Cluster, gone *process.Node, since time.Time) (time.Duration, error) {
	var last error
	for i := 0; time.Since(since) < servesWithin; i++ {
		for _, n := range c.Nodes {
			if n == gone {
				continue
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			key := fmt.Sprintf("after-%s-%d-%d", n.Name, since.UnixNano(), i)
			answer, err := coordinatorv1.NewCoordinatorServiceClient(n.Conn()).Reserve(ctx, &coordinatorv1.ReserveRequest{
				Identity: identity(key), Fingerprint: []byte(key),
			})
			cancel()
			if err == nil && answer.GetGranted() != nil {
				return time.Since(since), nil
			}
			last = err
		}
		time.Sleep(20 * time.Millisecond)
	}
	return 0, fmt.Errorf("the others do not serve within %v: %w", servesWithin, last)
}

// caughtUp waits until every node has applied what any had when it was asked first. Nodes
// that have applied the same entries must hold the same state.
func caughtUp(c *process.Cluster, within time.Duration) error {
	digests := make(map[uint64]uint64)
	applied, err := appliedOf(c, digests)
	for deadline := time.Now().Add(within); err != nil; applied, err = appliedOf(c, digests) {
		if time.Now().After(deadline) {
			return err
		}
		time.Sleep(50 * time.Millisecond)
	}
	target := slices.Max(applied)
	for deadline := time.Now().Add(within); err != nil || slices.Min(applied) < target; applied, err = appliedOf(c, digests) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not caught up within %v: applied are %d, %w", within, applied, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil
}

// appliedOf asks every node how far it is, and compares what is at the same index.
func appliedOf(c *process.Cluster, digests map[uint64]uint64) (applied []uint64, err error) {
	for _, n := range c.Nodes {
		if !n.Running() {
			return nil, fmt.Errorf("%s has ended: %s", n.Name, lastLine(n))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		answer, err := coordinatorv1.NewAdminServiceClient(n.Conn()).GetShard(ctx, &coordinatorv1.GetShardRequest{Local: true})
		cancel()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.Name, err)
		}
		index, digest := answer.GetShard().GetAppliedIndex(), answer.GetShard().GetStateDigest()
		if other, ok := digests[index]; ok && other != digest {
			return nil, fmt.Errorf("%s has another state at index %d", n.Name, index)
		}
		digests[index] = digest
		applied = append(applied, index)
	}
	return applied, nil
}

// TestNodeFileCannotBeWritten: a node that cannot note its start does not start.
func TestNodeFileCannotBeWritten(t *testing.T) {
	needsStrace(t)
	c := process.Start(t, smallPrograms(t), 1, "--shards", "1", "--free-bytes-min", "0")
	n := c.Nodes[0]
	code, err := n.Stop()
	if err != nil || code != 0 {
		t.Fatal(code, err)
	}
	before, err := os.ReadFile(filepath.Join(n.Dir, "node.json"))
	must(t, err)
	for _, fault := range []struct{ calls, does, file, says string }{
		{"write", "error=EIO", "node.json.tmp", "input/output error"},
		{"fsync", "error=EIO", "node.json.tmp", "input/output error"},
		{"write", "error=ENOSPC", "node.json.tmp", "no space left on device"},
		{"renameat,rename,renameat2", "error=EIO", "node.json.tmp", "input/output error"},
		{"openat", "error=EACCES", "node.json", "permission denied"},
		{"pwrite64", "error=EIO", "LOCK", "input/output error"},
	} {
		must(t, n.StartUnder([]string{
			"strace", "-D", "-f", "-q", "-o", filepath.Join(t.TempDir(), "inject"), "-P", filepath.Join(n.Dir, fault.file),
			"-e", "trace=" + fault.calls, "-e", "inject=" + fault.calls + ":" + fault.does, "--",
		}))
		code, err := n.Wait(time.Minute)
		must(t, err)
		line := lastLine(n)
		t.Logf("%s of %s: ended with %d: %s", fault.calls, fault.file, code, line)
		if code != 1 || !strings.HasPrefix(line, "coordinator: ") || !strings.Contains(line, n.Dir) || !strings.Contains(line, fault.says) {
			t.Errorf("%s of %s: ended with %d: %s", fault.calls, fault.file, code, line)
		}
	}
	after, err := os.ReadFile(filepath.Join(n.Dir, "node.json"))
	must(t, err)
	if string(after) != string(before) {
		t.Errorf("node.json was changed to %s", after)
	}
	must(t, n.Start())
	must(t, n.Serving(time.Minute))
}
