package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/process"
)

// TestAMajorityIsPutBack: two nodes of three get older copies of their directories, and
// elect a leader. The third one, which remembers more, must not go on beside them: who
// leads would decide what is answered. One of the three ends, and says why.
func TestAMajorityIsPutBack(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := process.Start(t, programs, 3, "--shards", "1")
	reserveKeys(t, c, "before", 20)
	stopAll(t, c.Nodes)
	old := t.TempDir()
	for _, n := range c.Nodes[:2] {
		must(t, os.CopyFS(filepath.Join(old, n.Name), os.DirFS(n.Dir)))
	}

	startAll(t, c.Nodes)
	must(t, c.Serving(serviceWithin))
	reserveKeys(t, c, "forgotten", 50)
	stopAll(t, c.Nodes)
	for _, n := range c.Nodes[:2] {
		must(t, os.RemoveAll(n.Dir))
		must(t, os.CopyFS(n.Dir, os.DirFS(filepath.Join(old, n.Name))))
		must(t, os.Chmod(n.Dir, 0o700))
	}

	startAll(t, c.Nodes[:2])
	for _, n := range c.Nodes[:2] {
		must(t, n.Serving(serviceWithin))
	}
	reserveKeys(t, c, "after", 20)
	must(t, c.Nodes[2].Start())
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		for _, n := range c.Nodes {
			if n.Running() {
				continue
			}
			code, err := n.Wait(time.Second)
			must(t, err)
			if code != 1 || !strings.Contains(n.Output(), "do not belong together") {
				t.Errorf("%s ended with %d", n.Name, code)
			}
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("all three go on")
		}
	}
}

func startAll(t *testing.T, nodes []*process.Node) {
	t.Helper()
	for _, n := range nodes {
		must(t, n.Start())
	}
}

func stopAll(t *testing.T, nodes []*process.Node) {
	t.Helper()
	for _, n := range nodes {
		code, err := n.Stop()
		must(t, err)
		if code != 0 {
			t.Fatalf("%s ended with %d", n.Name, code)
		}
	}
}

// reserveKeys reserves keys one after another, at the first node.
func reserveKeys(t *testing.T, c *process.Cluster, name string, count int) {
	t.Helper()
	service := coordinatorv1.NewCoordinatorServiceClient(c.Nodes[0].Conn())
	for i := range count {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		_, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: fmt.Sprint(name, "-", i)}})
		cancel()
		must(t, err)
	}
}
