package raftfsm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A majority is put back to older copies, and wins the same term a second time. The
// third, which was not put back, has entries of the first time: shorter, as long or
// longer than the new ones. Raft takes them for the same.
func TestAMajorityThatWasPutBackIsNotFollowed(t *testing.T) {
	for _, kept := range []int{1, 20, 60} {
		t.Run(fmt.Sprint(kept, " entries"), func(t *testing.T) {
			base := t.TempDir()
			synctest.Test(t, func(t *testing.T) { putBack(t, base, kept) })
		})
	}
}

func putBack(t *testing.T, base string, kept int) {
	c := newCluster(t, base, "a", "b", "c")
	stopped := make(map[string]error)
	var mu sync.Mutex
	c.fatal = func(name string, err error) {
		mu.Lock()
		defer mu.Unlock()
		stopped[name] = err
	}
	c.start("a", "b", "c")
	c.admit(c.leader(), 0, 10)
	c.agree()
	c.stopAll()
	for _, name := range []string{"a", "b"} {
		copyTree(t, filepath.Join(base, name), filepath.Join(base, "old", name))
	}

	c.start("a", "b", "c")
	g := c.leader()
	term := g.Term()
	c.admit(g, 100, 100+kept)
	c.agree()
	c.stopAll()

	// The same term again: it takes a few tries where two stand for election at once.
	for try := 0; ; try++ {
		for _, name := range []string{"a", "b"} {
			if err := replaceTree(filepath.Join(base, "old", name), filepath.Join(base, name)); err != nil {
				t.Fatal(err)
			}
		}
		c.start("a", "b")
		g = c.leader()
		if g.Term() == term {
			break
		}
		if try == 50 {
			t.Fatalf("term %d was not won a second time", term)
		}
		c.stop("a", "b")
	}
	c.admit(g, 200, 220)
	c.agree()
	c.start("c")
	for range 100 {
		mu.Lock()
		n := len(stopped)
		mu.Unlock()
		if n > 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	c.stopAll()
	mu.Lock()
	defer mu.Unlock()
	if len(stopped) == 0 {
		t.Error("nobody has noticed")
	}
	for name, err := range stopped {
		if !errors.Is(err, ErrDiverged) || !strings.Contains(err.Error(), filepath.Join(base, name)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(base, "c", stateName)); err != nil {
		t.Error(err)
	}
}
