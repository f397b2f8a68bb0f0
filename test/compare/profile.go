package compare

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/pprof"
	"syscall"
	"testing"
	"time"
)

// overlay makes the overlay with which the program can be profiled, and returns its path.
func overlay(t testing.TB, root string) string {
	t.Helper()
	source, err := filepath.Abs(filepath.Join("testdata", "profile.go.txt"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(root, "cmd", "coordinator", "profile.go"): source},
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const (
	profileLasts = 5 * time.Second // as testdata/profile.go.txt has it
	profileAfter = 2 * time.Second // until it runs as it does
)

// profile profiles all nodes and this process while a contender works.
func (c contender) profile(t testing.TB, dir string, callers int) {
	t.Helper()
	own, err := os.Create(filepath.Join(dir, "load.pprof"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close() //nolint:errcheck // a profile that is cut is seen to be
	done := make(chan error, 1)
	go func() {
		time.Sleep(profileAfter)
		for _, pid := range c.servers() {
			if err := syscall.Kill(pid, syscall.SIGUSR2); err != nil {
				done <- err
				return
			}
		}
		err := pprof.StartCPUProfile(own)
		time.Sleep(profileLasts)
		pprof.StopCPUProfile()
		done <- err
	}()
	got := c.take(t, callers, profileAfter+profileLasts+2*time.Second)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	t.Logf("%s, %d callers: %.0f/s, processor time for each: servers %v, load %v; %d failed: %v",
		c.name, callers, got.rate, got.servers, got.load, got.failed, got.why)
}
