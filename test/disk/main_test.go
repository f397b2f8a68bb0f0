package disk

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// full reports whether everything is to be tried, not only a part.
func full() bool { return os.Getenv("COORDINATOR_FAULT") != "" }

// root is the module's.
const root = "../.."

// programs are built once: as they are, and with the bounds of small.
var built struct {
	dir      string
	once     sync.Once
	small    process.Programs
	smallErr error
}

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "disk-programs-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		built.dir = dir
		return m.Run()
	}())
}

// edit replaces a text that is in a source file once.
type edit struct{ file, from, to string }

// small are bounds that make a log of a few hundred KiB do what a real one does after
// hundreds of MiB: fill segments, be cut, send its followers the state instead.
var small = []edit{
	{"internal/raftlog/log.go", "const SegmentBytes = 8 << 20", "const SegmentBytes = 64 << 10"},
	{"internal/raftlog/blocks.go", "const zeroBytes = 128 << 10", "const zeroBytes = 16 << 10"},
	{"internal/raftfsm/config.go", "snapshotBytes:   256 << 20,", "snapshotBytes:   192 << 10,"},
	{"internal/raftfsm/config.go", "snapshotEntries: 8192,", "snapshotEntries: 64,"},
	{"internal/raftfsm/config.go", "bytesMax:        512 << 20,", "bytesMax:        1 << 20,"},
	{"internal/raftfsm/config.go", "trailing:        10_240,", "trailing:        128,"},
	{"internal/raftfsm/config.go", "trailingMin:     64,", "trailingMin:     8,"},
}

// smallPrograms returns the program with the bounds of small.
func smallPrograms(t *testing.T) process.Programs {
	t.Helper()
	built.once.Do(func() { built.small, built.smallErr = buildWith(filepath.Join(built.dir, "small"), small) })
	if built.smallErr != nil {
		t.Fatal(built.smallErr)
	}
	return built.small
}

// buildWith builds the coordinator with some texts replaced. An edit that does not apply
// is an error: the source has changed, and the edit must, too.
func buildWith(dir string, edits []edit) (process.Programs, error) {
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return process.Programs{}, err
	}
	changed := make(map[string]string)
	for _, e := range edits {
		path, err := filepath.Abs(filepath.Join(root, e.file))
		if err != nil {
			return process.Programs{}, err
		}
		if changed[path] == "" {
			source, err := os.ReadFile(path)
			if err != nil {
				return process.Programs{}, err
			}
			changed[path] = string(source)
		}
		if n := strings.Count(changed[path], e.from); n != 1 {
			return process.Programs{}, fmt.Errorf("%s has %q %d times, not once", e.file, e.from, n)
		}
		changed[path] = strings.Replace(changed[path], e.from, e.to, 1)
	}
	for path, source := range changed {
		copied := filepath.Join(dir, strconv.Itoa(len(overlay.Replace))+".go")
		if err := os.WriteFile(copied, []byte(source), 0o600); err != nil {
			return process.Programs{}, err
		}
		overlay.Replace[path] = copied
	}
	encoded, err := json.Marshal(overlay)
	if err != nil {
		return process.Programs{}, err
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, encoded, 0o600); err != nil {
		return process.Programs{}, err
	}
	program := filepath.Join(dir, "coordinator")
	command := exec.CommandContext(context.Background(), "go", "build", "-overlay", list, "-o", program, "./cmd/coordinator")
	command.Dir = root
	if out, err := command.CombinedOutput(); err != nil {
		return process.Programs{}, fmt.Errorf("%v: %w\n%s", command.Args, err, out)
	}
	return process.Programs{Coordinator: program}, nil
}

// needsStrace skips a test where strace cannot be used.
func needsStrace(t *testing.T) {
	t.Helper()
	if err := Available(); err != nil {
		t.Skipf("NOT TRIED, because %v: what a power failure, a crash between two steps and a failing disk leave behind", err)
	}
}

// newSeed returns what the test draws from, and logs it.
func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if set := os.Getenv("DISK_SEED"); set != "" {
		var err error
		if seed, err = strconv.ParseUint(set, 10, 64); err != nil {
			t.Fatalf("DISK_SEED: %v", err)
		}
	}
	t.Logf("DISK_SEED=%d", seed)
	return seed
}

// drawFrom returns the random numbers of one user of a seed.
func drawFrom(seed, user uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, user)) }

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
