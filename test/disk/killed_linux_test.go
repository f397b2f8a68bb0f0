package disk

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// TestKilledAtACall kills a real node at one of its calls of the disk, again and again,
// whatever it is at: founding, starting, or writing. It checks what the tests on
// recordings rest on: that they leave what a kill leaves.
func TestKilledAtACall(t *testing.T) {
	needsStrace(t)
	t.Parallel() // it waits more than it works
	kills := 3
	if full() {
		kills = 20
	}
	seed := newSeed(t)
	random := drawFrom(seed, 0)
	c := process.New(t, smallPrograms(t), 1, "--shards", "2", "--free-bytes-min", "0")
	n := c.Nodes[0]
	b := &book{shards: 2}
	w := startWorkers(b, (&recording{cluster: c}).conns(), 6, seed)
	const calls = "pwrite64,write,fdatasync,fsync,renameat,ftruncate,fallocate,unlinkat,mkdirat"
	for kill := range kills {
		// Strace counts in each thread by itself: a start has a few dozen calls.
		at := 1 + random.IntN(20)
		if kill%2 == 1 {
			at = 1 + random.IntN(150)
		}
		must(t, n.StartUnder([]string{
			"strace", "-D", "-f", "-q", "--seccomp-bpf", "-o", filepath.Join(t.TempDir(), fmt.Sprint("kill-", kill)),
			"-e", "trace=" + calls, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", calls, at), "-e", "signal=none", "--",
		}))
		code, err := n.Wait(5 * time.Second)
		if err != nil { // no thread came that far: at whichever call it is
			must(t, n.Kill())
			continue
		}
		if code != -1 {
			t.Fatalf("to be killed at call %d, it ended with %d: %s", at, code, lastLine(n))
		}
	}
	must(t, n.Start())
	must(t, n.Serving(time.Minute))
	must(t, w.stop())
	must(t, b.check(n.Conn(), never64, random))
	t.Logf("%d kills, %d calls answered", kills, w.calls.Load())
}
