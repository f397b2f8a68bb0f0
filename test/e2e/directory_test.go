package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// TestSecondProcess: a directory is used by one process, and the other one says so.
func TestSecondProcess(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := process.Start(t, programs, 1)
	n := c.Nodes[0]
	result, err := process.Run(time.Minute, programs.Coordinator, "--data-dir", n.Dir, "--listen", "127.0.0.1:0")
	must(t, err)
	if result.Code == 0 || result.Took > 5*time.Second || !strings.Contains(result.Stderr, n.Dir) {
		t.Errorf("exit code %d after %v: %s", result.Code, result.Took, result.Stderr)
	}
	t.Logf("exit code %d after %v: %s", result.Code, result.Took.Round(time.Millisecond), result.Stderr)
	must(t, n.Serving(time.Second))
	// A process that is gone holds nothing.
	must(t, n.Kill())
	must(t, n.Start())
	must(t, n.Serving(30*time.Second))
}

// TestDamaged: whatever is wrong in the directory, the node says in which file, ends, and
// leaves everything as it is: never a fresh start in its place.
func TestDamaged(t *testing.T) {
	t.Parallel() // it waits more than it works
	c := process.Start(t, programs, 1)
	n := c.Nodes[0]
	log := history.NewRecorder()
	all := &caller{nodes: c.Nodes, shards: shardsDefault, log: log, try: 3 * time.Second, within: time.Minute}
	var holders []*held
	for i := range 60 {
		_, granted, err := all.reserve(t.Context(), 0, call{key: fmt.Sprint(i)})
		must(t, err)
		holders = append(holders, granted)
		if i%2 == 0 {
			must(t, all.commit(t.Context(), 0, granted, &coordinatorv1.Response{Code: 200, Body: bytes.Repeat([]byte{byte(i)}, 100*i)}))
		}
	}
	code, err := n.Stop()
	must(t, err)
	if code != 0 {
		t.Fatalf("a graceful stop ended with %d", code)
	}

	overwrite := func(with string, at int) func([]byte) []byte {
		return func(content []byte) []byte {
			damaged := bytes.Clone(content)
			copy(damaged[at:], with)
			return damaged
		}
	}
	be := func(content string) func([]byte) []byte { return func([]byte) []byte { return []byte(content) } }
	state, meta := filepath.Join("shards", "0001", "state.db"), filepath.Join("shards", "0001", "log", "wal-meta.db")
	other, err := os.ReadFile(filepath.Join(n.Dir, "shards", "0002", "state.db"))
	must(t, err)
	segments, err := filepath.Glob(filepath.Join(n.Dir, "shards", "0001", "log", "*.wal"))
	must(t, err)
	if len(segments) == 0 {
		t.Fatal("there is no log")
	}
	segment, err := filepath.Rel(n.Dir, segments[0])
	must(t, err)

	garbage := strings.Repeat("garbage ", 1024)
	cases := []struct {
		name, file string
		damage     func([]byte) []byte // nil: the file is removed
	}{
		{"state file of nothing", state, be("")},
		{"state file of text", state, be("This is no state file.\n")},
		{"state file of zeros", state, func(content []byte) []byte { return make([]byte, len(content)) }},
		{"state file with garbage at its start", state, overwrite(garbage, 0)},
		{"state file cut short", state, func(content []byte) []byte { return content[:12000] }},
		{"state file of another shard", state, func([]byte) []byte { return other }},
		{"state file gone", state, nil},
		{"node.json of nothing", "node.json", be("")},
		{"node.json of text", "node.json", be("no JSON")},
		{"node.json cut short", "node.json", func(content []byte) []byte { return content[:len(content)/2] }},
		{"node.json of another node", "node.json", func(content []byte) []byte {
			return bytes.ReplaceAll(content, []byte(`"n1"`), []byte(`"n9"`))
		}},
		{"node.json of a later format", "node.json", func(content []byte) []byte {
			return bytes.Replace(content, []byte(`"format": 1`), []byte(`"format": 99`), 1)
		}},
		{"node.json gone", "node.json", nil},
		{"log index of nothing", meta, be("")},
		{"log index with garbage at its start", meta, overwrite(garbage, 0)},
		{"log index gone", meta, nil},
		{"log segment with garbage at its start", segment, overwrite(garbage, 0)},
		{"log segment gone", segment, nil},
	}
	for _, damage := range cases {
		t.Run(damage.name, func(t *testing.T) {
			// The library that keeps the log begins a segment that is gone anew; the node
			// finds that the log does not belong to the state, and names the place.
			made := damage.file == segment && damage.damage == nil
			names := damage.file
			switch names {
			case meta:
				names = filepath.Dir(meta)
			case segment:
				names = filepath.Dir(filepath.Dir(segment))
			}
			path := filepath.Join(n.Dir, damage.file)
			good, err := os.ReadFile(path)
			must(t, err)
			info, err := os.Stat(path)
			must(t, err)
			var damaged []byte
			if damage.damage == nil {
				must(t, os.Remove(path))
			} else {
				damaged = damage.damage(good)
				must(t, os.WriteFile(path, damaged, 0o600))
			}
			before := listing(t, n.Dir)
			// It does not get used to it either.
			for range 2 {
				result, err := process.Run(30*time.Second, programs.Coordinator, "--data-dir", n.Dir, "--listen", n.Client)
				must(t, err)
				lines := strings.Split(strings.TrimSpace(result.Stderr), "\n")
				last := lines[len(lines)-1]
				t.Logf("exit code %d after %v: %s", result.Code, result.Took.Round(time.Millisecond), last)
				if result.Code == 0 || !strings.Contains(last, filepath.Join(n.Dir, names)) {
					t.Errorf("it does not end naming %s", names)
				}
				// What is of a later version is not to be given up.
				if later := strings.Contains(damage.name, "later format"); strings.Contains(last, disk.Advice) == later {
					t.Error("it does not say what to do, or says it where nothing is lost")
				}
			}
			if !made {
				switch after, err := os.ReadFile(path); {
				case damage.damage == nil && !os.IsNotExist(err):
					t.Error("the file was made anew")
				case damage.damage != nil && (err != nil || !bytes.Equal(after, damaged)):
					t.Errorf("the file was changed: %v", err)
				}
				if after := listing(t, n.Dir); after != before {
					t.Errorf("the directory was changed from\n%sto\n%s", before, after)
				}
			}
			must(t, os.WriteFile(path, good, info.Mode().Perm()))
		})
	}

	// Everything put back, everything is there.
	must(t, n.Start())
	must(t, n.Serving(30*time.Second))
	for _, h := range holders {
		_, _, err := all.reserve(context.Background(), 0, h.call)
		must(t, err)
	}
	verify(t, log)
}

// TestDamageUnderARunningNode: somebody cuts or overwrites the state file of a node that
// runs. It ends, and says why, in its own words.
func TestDamageUnderARunningNode(t *testing.T) {
	t.Parallel() // it waits more than it works
	for name, damage := range map[string]func(path string, size int64) error{
		"cut to nothing": func(path string, _ int64) error { return os.Truncate(path, 0) },
		"overwritten": func(path string, size int64) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, int(size)), 0)
			return errors.Join(err, f.Close())
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := process.Start(t, programs, 1).Nodes[0]
			service := coordinatorv1.NewCoordinatorServiceClient(n.Conn())
			path := filepath.Join(n.Dir, "shards", "0001", "state.db")
			info, err := os.Stat(path)
			must(t, err)
			must(t, damage(path, info.Size()))
			ended := make(chan struct{})
			var calls sync.WaitGroup
			calls.Go(func() { // what is reserved is written down, and that fails
				for i := 0; ; i++ {
					select {
					case <-ended:
						return
					case <-time.After(time.Millisecond):
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					_, _ = service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: fmt.Sprint(i)}})
					cancel()
				}
			})
			code, err := n.Wait(30 * time.Second)
			close(ended)
			calls.Wait()
			must(t, err)
			output := n.Output()
			if code != 1 || strings.Contains(output, "goroutine ") || strings.Contains(output, "runtime error") ||
				!strings.Contains(output, disk.Advice) || !strings.Contains(output, "state file "+path+": ") {
				t.Errorf("exit code %d: %s", code, output)
			}
		})
	}
}

// TestLogReaderGone: whoever reads a node's log goes away, and the node goes on.
func TestLogReaderGone(t *testing.T) {
	t.Parallel() // it waits more than it works
	n := process.New(t, programs, 1).Nodes[0]
	bash, err := exec.LookPath("bash")
	must(t, err)
	must(t, n.StartUnder([]string{bash, "-c", `exec "$0" "$@" 2> >(read -r first)`}))
	must(t, n.Serving(30*time.Second)) // after many lines more than the first
	service := coordinatorv1.NewCoordinatorServiceClient(n.Conn())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: "k"}}); err != nil {
		t.Error(err)
	}
	code, err := n.Stop()
	must(t, err)
	if code != 0 {
		t.Errorf("a graceful stop ended with %d", code)
	}
}

// listing returns the names of all files with their sizes; of node.json, which counts the
// starts of its directory, the name only.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var text strings.Builder
	must(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "LOCK" {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		size := info.Size()
		if entry.Name() == "node.json" {
			size = 0
		}
		fmt.Fprintf(&text, "%s %d\n", strings.TrimPrefix(path, dir), size)
		return nil
	}))
	return text.String()
}
