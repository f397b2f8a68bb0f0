package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// Tests of `coordctl run`, with commands that leave traces in files: a line for each time
// that one was started, and a heartbeat for as long as a process of it goes on.

// runWithin is the longest that anything here may take.
const runWithin = time.Minute

// running is a `coordctl run` with its command.
type running struct {
	command        *exec.Cmd
	stdout, stderr bytes.Buffer // to be read once it has ended
	ended          chan struct{}
	began          time.Time
	took           time.Duration
}

// startRun starts coordctl run with some nodes as endpoints. It is killed with the test.
func startRun(t *testing.T, endpoints []string, arguments ...string) *running {
	t.Helper()
	r := newRun(t, endpoints, arguments...)
	r.start(t)
	return r
}

// newRun is [startRun] without the start.
func newRun(t *testing.T, endpoints []string, arguments ...string) *running {
	t.Helper()
	r := &running{ended: make(chan struct{})}
	r.command = exec.CommandContext(t.Context(), programs.Coordctl, append([]string{"run", "--endpoints", strings.Join(endpoints, ",")}, arguments...)...)
	r.command.Stdout, r.command.Stderr = &r.stdout, &r.stderr
	r.command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		return strings.HasPrefix(variable, "COORDINATOR_") || strings.HasPrefix(variable, "COORDCTL_") || strings.HasPrefix(variable, "GORACE=")
	})
	// Under the race detector a process would sleep a second before it exits.
	r.command.Env = append(r.command.Env, "GORACE=atexit_sleep_ms=0", "COORDCTL="+programs.Coordctl)
	return r
}

func (r *running) start(t *testing.T) {
	t.Helper()
	r.began = time.Now()
	must(t, r.command.Start())
	go func() {
		defer close(r.ended)
		_ = r.command.Wait() // what it ended with is in ProcessState
		r.took = time.Since(r.began)
	}()
	t.Cleanup(func() { <-r.ended })
}

func (r *running) signal(t *testing.T, which syscall.Signal) {
	t.Helper()
	must(t, r.command.Process.Signal(which))
}

// code waits for its end and returns the exit code, -1 for a signal.
func (r *running) code(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(runWithin):
		r.signal(t, syscall.SIGQUIT)
		<-r.ended
		t.Fatalf("coordctl %v goes on; stderr: %s", r.command.Args[1:], &r.stderr)
	}
	if strings.Contains(r.stderr.String(), "DATA RACE") {
		t.Errorf("a data race:\n%s", &r.stderr)
	}
	return r.command.ProcessState.ExitCode()
}

// expect waits for its end and compares the exit code.
func (r *running) expect(t *testing.T, code int) {
	t.Helper()
	if got := r.code(t); got != code {
		t.Errorf("coordctl %v ended with %d, not %d, after %v; stdout: %s; stderr: %s",
			r.command.Args[1:], got, code, r.took, &r.stdout, &r.stderr)
	}
}

// beating is a shell function that goes on for ever and says so in a file.
const beating = `beat() { while :; do echo x >> "$1"; sleep 0.02; done; }; `

// size returns the size of a file, 0 where there is none.
func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	must(t, err)
	return info.Size()
}

// awaitFile waits until a file has content.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	for deadline := time.Now().Add(runWithin); size(t, path) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s stays empty", path)
		}
	}
}

// silent fails the test if a heartbeat goes on.
func silent(t *testing.T, beat string) {
	t.Helper()
	before := size(t, beat)
	time.Sleep(300 * time.Millisecond)
	if after := size(t, beat); after != before {
		t.Errorf("%s grew from %d to %d bytes: a process of the command goes on", beat, before, after)
	}
}

// lines returns the lines of a file.
func lines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

// recordOf returns what coordctl get shows of a key.
func recordOf(t *testing.T, c *process.Cluster, key string) (record struct {
	State   string `json:"state"`
	Attempt int    `json:"attempt"`
	Fence   uint64 `json:"fence"`
}) {
	t.Helper()
	result, err := c.Programs.Control(runWithin, c.Endpoints(), "--timeout", "30s", "-o", "json", "get", key)
	must(t, err)
	if result.Code != 0 {
		t.Fatalf("get ended with %d: %s", result.Code, result.Stderr)
	}
	must(t, json.Unmarshal([]byte(result.Stdout), &record))
	return record
}

// Five callers at once, two at one node and one at each of three, while the node that leads
// the most is killed: the command runs once, and all of them say what it said.
func TestRunIsOnceAcrossMachines(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 3)
	ran := filepath.Join(t.TempDir(), "ran")
	const script = `echo started >> "$1"; sleep 2; printf 'a\0b'; echo oops >&2; exit 7`
	var callers []*running
	for _, node := range []int{0, 0, 0, 1, 2} {
		// Each begins at another node, and knows the others for when that one is gone.
		endpoints := append(slices.Clone(cluster.Endpoints()[node:]), cluster.Endpoints()[:node]...)
		callers = append(callers, startRun(t, endpoints, "--key", "once", "--timeout", "30s", "--", "sh", "-c", script, "sh", ran))
	}
	awaitFile(t, ran)
	leader, err := cluster.LeaderOfMost(30 * time.Second)
	must(t, err)
	must(t, leader.Kill())
	for _, caller := range callers {
		caller.expect(t, 7)
		if caller.stdout.String() != "a\x00b" || caller.stderr.String() != "oops\n" {
			t.Errorf("said %q and %q", &caller.stdout, &caller.stderr)
		}
	}
	if got := lines(t, ran); len(got) != 1 {
		t.Errorf("it ran %d times", len(got))
	}
	must(t, leader.Start())
}

// The coordinator is killed while the command runs and somebody waits for it, and comes
// back in time: both get what it said.
func TestRunSurvivesItsCoordinator(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	dir := t.TempDir()
	arguments := []string{"--key", "k", "--pending-ttl", "30s", "--", "sh", "-c", `echo started >> "$1/ran"; sleep 5; echo done`, "sh", dir}
	owner := startRun(t, cluster.Endpoints(), arguments...)
	awaitFile(t, filepath.Join(dir, "ran"))
	waiter := startRun(t, cluster.Endpoints(), arguments...)
	time.Sleep(500 * time.Millisecond)
	must(t, cluster.Nodes[0].Kill())
	time.Sleep(2 * time.Second)
	must(t, cluster.Nodes[0].Start())
	for _, caller := range []*running{owner, waiter} {
		caller.expect(t, 0)
		if caller.stdout.String() != "done\n" || caller.stderr.Len() != 0 {
			t.Errorf("said %q and %q", &caller.stdout, &caller.stderr)
		}
	}
	if got := lines(t, filepath.Join(dir, "ran")); len(got) != 1 {
		t.Errorf("it ran %d times", len(got))
	}
}

// The coordinator is away when the command ends. Recording is tried for --settle-timeout,
// and never becomes a release.
func TestRunWithoutACoordinatorAtItsEnd(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	node := cluster.Nodes[0]
	for name, settle := range map[string]string{"not-recorded": "700ms", "recorded": "40s"} {
		dir := t.TempDir()
		caller := startRun(t, cluster.Endpoints(), "--key", name, "--settle-timeout", settle, "--",
			"sh", "-c", `echo started > "$1/ran"; while test ! -e "$1/go"; do sleep 0.02; done; exit 6`, "sh", dir)
		awaitFile(t, filepath.Join(dir, "ran"))
		must(t, node.Kill())
		must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o600))
		want, state := 112, "PENDING"
		if name == "recorded" {
			want, state = 6, "COMMITTED"
			time.Sleep(time.Second)
		} else {
			caller.expect(t, want)
			if said := caller.stderr.String(); !strings.Contains(said, "the command ended with 6, and the outcome is not recorded: ") {
				t.Errorf("said %q", said)
			}
		}
		must(t, node.Start())
		must(t, cluster.Serving(runWithin))
		caller.expect(t, want)
		if record := recordOf(t, cluster, name); record.State != state || record.Attempt != 1 {
			t.Errorf("%s: %+v", name, record)
		}
	}
}

// When the reservation cannot be renewed, the command and what it has started are gone
// before the key is given to another, whether they listen to SIGTERM or not.
func TestRunStopsWhatItCannotOwn(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	node := cluster.Nodes[0]
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	const ttl = 6 * time.Second
	arguments := func(key, traps string) []string {
		return []string{"--key", key, "--pending-ttl", ttl.String(), "--kill-after", "800ms", "--", "sh", "-c",
			beating + traps + ` (beat "$1.grandchild") & beat "$1"`, "sh", path(key)}
	}
	stubborn := startRun(t, cluster.Endpoints(), arguments("stubborn", `trap '' TERM HUP;`)...)
	polite := startRun(t, cluster.Endpoints(), arguments("polite", `trap 'echo bye; exit 3' TERM;`)...)
	for _, key := range []string{"stubborn", "stubborn.grandchild", "polite", "polite.grandchild"} {
		awaitFile(t, path(key))
	}
	time.Sleep(ttl) // it is renewed
	must(t, node.Kill())
	killed := time.Now()
	for _, caller := range []*running{stubborn, polite} {
		caller.expect(t, 107)
		if late := time.Since(killed); late > ttl+10*time.Second {
			t.Errorf("it was stopped %v after the coordinator was gone", late)
		}
		if said := caller.stderr.String(); !strings.Contains(said, "ownership was lost") ||
			!strings.Contains(said, "cannot connect to "+cluster.Endpoints()[0]) || !strings.Contains(said, "the next caller runs it again") {
			t.Errorf("said %q", said)
		}
	}
	if polite.stdout.String() != "bye\n" {
		t.Errorf("SIGTERM came as %q", &polite.stdout)
	}
	for _, key := range []string{"stubborn", "stubborn.grandchild", "polite", "polite.grandchild"} {
		silent(t, path(key))
	}
	// Nothing was released: the next one waits until the key lapses.
	must(t, node.Start())
	must(t, cluster.Serving(runWithin))
	if record := recordOf(t, cluster, "polite"); record.State != "PENDING" && record.State != "LAPSED" {
		t.Errorf("%+v", record)
	}
}

// An operator takes the key away: the next renewal says so, and the command is stopped, one
// that has left its process group too.
func TestRunStopsWhatWasPurged(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	dir := t.TempDir()
	words := map[string][]string{"plain": nil}
	if path, err := exec.LookPath("setsid"); err == nil {
		words["away"] = []string{path}
	}
	callers := make(map[string]*running)
	for key, before := range words {
		arguments := append([]string{"--key", key, "--pending-ttl", "9s", "--"}, before...)
		callers[key] = startRun(t, cluster.Endpoints(), append(arguments, "sh", "-c", beating+`beat "$1"`, "sh", filepath.Join(dir, key))...)
	}
	for key, caller := range callers {
		awaitFile(t, filepath.Join(dir, key))
		fence := recordOf(t, cluster, key).Fence
		result, err := programs.Control(runWithin, cluster.Endpoints(), "--timeout", "30s", "purge", key, "--fence", fmt.Sprint(fence), "--force")
		if err != nil || result.Code != 0 {
			t.Fatalf("%+v, %v", result, err)
		}
		caller.expect(t, 107)
		if said := caller.stderr.String(); !strings.HasPrefix(said, "coordctl: RESERVATION_NOT_FOUND: ownership was lost") {
			t.Errorf("said %q", said)
		}
		silent(t, filepath.Join(dir, key))
	}
}

// kill -9 of coordctl takes the command and what it has started along; the next caller runs
// it once the key has lapsed, or is told that it is in doubt.
func TestRunIsKilled(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	for _, onLapse := range []string{"reopen", "hold"} {
		dir := t.TempDir()
		beats := []string{filepath.Join(dir, "1"), filepath.Join(dir, "1.grandchild")}
		const ttl = 5 * time.Second
		arguments := []string{"-v", "--key", onLapse, "--on-lapse", onLapse, "--pending-ttl", ttl.String(), "--", "sh", "-c", beating + `
			echo started >> "$1/ran"
			if test $(grep -c . "$1/ran") = 2; then cat "$1/1" "$1/1.grandchild" | grep -c x; exit 8; fi
			trap '' TERM; (trap '' TERM; beat "$1/1.grandchild") & beat "$1/1"`, "sh", dir}
		first := startRun(t, cluster.Endpoints(), arguments...)
		for _, beat := range beats {
			awaitFile(t, beat)
		}
		killed := time.Now()
		first.signal(t, syscall.SIGKILL)
		first.expect(t, -1)
		second := startRun(t, cluster.Endpoints(), arguments...)
		silentSoon(t, beats)
		if onLapse == "reopen" {
			second.expect(t, 8)
			// It has seen every heartbeat that there ever was.
			if total := (size(t, beats[0]) + size(t, beats[1])) / 2; strings.TrimSpace(second.stdout.String()) != fmt.Sprint(total) {
				t.Errorf("it saw %q heartbeats, there are %d", &second.stdout, total)
			}
			if !strings.Contains(second.stderr.String(), "attempt 2; the one before: lapsed") {
				t.Errorf("said %q", &second.stderr)
			}
		} else {
			second.expect(t, 105)
			if got := lines(t, filepath.Join(dir, "ran")); len(got) != 1 {
				t.Errorf("it ran %d times", len(got))
			}
		}
		if took := time.Since(killed); took < ttl/2 {
			t.Errorf("the key lapsed after %v", took)
		}
	}
}

// silentSoon waits until heartbeats have ended.
func silentSoon(t *testing.T, beats []string) {
	t.Helper()
	sum := func() (total int64) {
		for _, beat := range beats {
			total += size(t, beat)
		}
		return total
	}
	deadline := time.Now().Add(10 * time.Second)
	for last := int64(-1); sum() != last; time.Sleep(200 * time.Millisecond) {
		if last = sum(); time.Now().After(deadline) {
			t.Fatal("a process of the command goes on")
		}
	}
}

// A coordctl that stands still renews nothing and stops nothing. Its guard does, no later
// than the key may be given to another.
func TestRunStandsStill(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the guard has no clock to go by")
	}
	cluster := process.Start(t, programs, 1)
	dir := t.TempDir()
	beats := []string{filepath.Join(dir, "child"), filepath.Join(dir, "grandchild")}
	arguments := []string{"--key", "k", "--pending-ttl", "6s", "--", "sh", "-c", beating + `
		test -e "$1/child" && exit 4
		(beat "$1/grandchild") & beat "$1/child"`, "sh", dir}
	first := startRun(t, cluster.Endpoints(), arguments...)
	for _, beat := range beats {
		awaitFile(t, beat)
	}
	first.signal(t, syscall.SIGSTOP)
	second := startRun(t, cluster.Endpoints(), arguments...)
	second.expect(t, 4) // it was admitted, so nothing of the first goes on
	for _, beat := range beats {
		silent(t, beat)
	}
	first.signal(t, syscall.SIGCONT)
	first.expect(t, 107)
}

// A command that was killed together with its guard, which is how the guard kills, has not
// ended by itself, although the key is still its own: nothing is recorded. One that was
// killed alone has.
func TestRunWhoseGroupWasKilled(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	for _, test := range []struct {
		key   string
		group bool
		code  int
		again int // of a caller that does not wait
	}{
		{"group", true, 107, 3}, {"command", false, 137, 137},
	} {
		file := filepath.Join(t.TempDir(), "pid")
		arguments := []string{"--key", test.key, "--on-lapse", "hold", "--", "sh", "-c", `echo $$ > "$1"; while :; do sleep 0.05; done`, "sh", file}
		r := startRun(t, cluster.Endpoints(), arguments...)
		awaitFile(t, file)
		content, err := os.ReadFile(file)
		must(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(content)))
		must(t, err)
		group, err := syscall.Getpgid(pid)
		must(t, err)
		if test.group {
			pid = -group
		}
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		r.expect(t, test.code)
		startRun(t, cluster.Endpoints(), append([]string{"--no-wait"}, arguments...)...).expect(t, test.again)
	}
}

// What a command says is passed through whole and replayed byte for byte, its last 64 KiB
// at most.
func TestRunReplaysItsOutput(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	for name, c := range map[string]struct {
		script   string
		replayed int // bytes on stdout; -1: all
	}{
		"binary":       {`i=0; while test $i -lt 20; do head -c 900 /dev/urandom; head -c 700 /dev/urandom >&2; i=$((i+1)); done; exit 1`, -1},
		"at the limit": {`head -c 65536 /dev/urandom; exit 1`, -1},
		"large":        {`head -c 100000 /dev/urandom >&2; head -c 300000 /dev/urandom; exit 1`, 64 << 10},
		"nothing":      {`exit 1`, -1},
	} {
		arguments := []string{"--key", name, "--", "sh", "-c", c.script}
		first := startRun(t, cluster.Endpoints(), arguments...)
		first.expect(t, 1)
		again := startRun(t, cluster.Endpoints(), arguments...)
		again.expect(t, 1)
		if c.replayed < 0 {
			if !bytes.Equal(first.stdout.Bytes(), again.stdout.Bytes()) || !bytes.Equal(first.stderr.Bytes(), again.stderr.Bytes()) {
				t.Errorf("%s: %d and %d bytes, replayed as %d and %d", name, first.stdout.Len(), first.stderr.Len(), again.stdout.Len(), again.stderr.Len())
			}
			continue
		}
		if first.stdout.Len() != 300000 || first.stderr.Len() != 100000 {
			t.Errorf("%s: %d and %d bytes passed through", name, first.stdout.Len(), first.stderr.Len())
		}
		if again.stdout.Len() != c.replayed || !bytes.HasSuffix(first.stdout.Bytes(), again.stdout.Bytes()) {
			t.Errorf("%s: %d bytes replayed", name, again.stdout.Len())
		}
		left := fmt.Sprintf("the first %d bytes of its output were not recorded\n", 400000-c.replayed)
		if said := again.stderr.String(); !strings.HasPrefix(said, "coordctl: it ran before") || !strings.HasSuffix(said, left) {
			t.Errorf("%s: said %q", name, said)
		}
	}
}

// Signals are the command's while there is one, its whole group's; before that they end the
// program, and nothing is started.
func TestRunPassesSignalsOn(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	dir := t.TempDir()
	arguments := []string{"--key", "k", "--", "sh", "-c", `trap 'echo bye; exit 9' TERM INT; echo started >> "$1/ran"; while :; do sleep 0.05; done`, "sh", dir}
	owner := startRun(t, cluster.Endpoints(), arguments...)
	awaitFile(t, filepath.Join(dir, "ran"))
	waiter := startRun(t, cluster.Endpoints(), arguments...)
	time.Sleep(time.Second) // no sign of it that it waits
	waiter.signal(t, syscall.SIGINT)
	waiter.expect(t, 128+int(syscall.SIGINT))
	if said := waiter.stderr.String(); !strings.Contains(said, "the command was not started") {
		t.Errorf("said %q", said)
	}
	owner.signal(t, syscall.SIGTERM)
	owner.expect(t, 9)
	again := startRun(t, cluster.Endpoints(), arguments...)
	again.expect(t, 9)
	if owner.stdout.String() != "bye\n" || again.stdout.String() != "bye\n" {
		t.Errorf("said %q, then %q", &owner.stdout, &again.stdout)
	}

	plain := startRun(t, cluster.Endpoints(), "--key", "plain", "--", "sh", "-c", `echo started > "$1/plain"; sleep 60; true`, "sh", dir)
	awaitFile(t, filepath.Join(dir, "plain"))
	plain.signal(t, syscall.SIGTERM)
	plain.expect(t, 128+int(syscall.SIGTERM))
}

// A command may run another under a key of its own, and gets that one's fence there.
func TestRunInsideRun(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	caller := startRun(t, cluster.Endpoints(), "--key", "outer", "--", "sh", "-c",
		`echo outer $COORDINATOR_FENCE; "$COORDCTL" run --endpoints "$1" --key outer --operation inner -- sh -c 'echo inner $COORDINATOR_FENCE'`,
		"sh", cluster.Endpoints()[0])
	caller.expect(t, 0)
	var outer, inner int
	if _, err := fmt.Sscanf(caller.stdout.String(), "outer %d\ninner %d\n", &outer, &inner); err != nil || outer < 1 || inner < 1 {
		t.Errorf("said %q: %v", &caller.stdout, err)
	}
}

// What is left in the background neither holds the caller up nor is killed, and nobody
// reading the output is no reason to stop.
func TestRunEndsWithItsCommand(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	dir := t.TempDir()
	path := filepath.Join(dir, "left behind")
	caller := startRun(t, cluster.Endpoints(), "--key", "background", "--", "sh", "-c",
		`(sleep 6; echo here > "$1") & echo done`, "sh", path)
	caller.expect(t, 0)
	if caller.took > 5500*time.Millisecond || caller.stdout.String() != "done\n" {
		t.Errorf("it took %v and said %q", caller.took, &caller.stdout)
	}

	// Who reads slowly gets everything, long after the command has ended.
	result, err := process.Run(runWithin, "sh", "-c",
		`"$0" run --endpoints "$1" --key slow -- head -c 300000 /dev/zero | (sleep 5; wc -c)`, programs.Coordctl, cluster.Endpoints()[0])
	if err != nil || strings.TrimSpace(result.Stdout) != "300000" {
		t.Errorf("%+v, %v", result, err)
	}

	result, err = process.Run(runWithin, "sh", "-c",
		`"$0" run --endpoints "$1" --key unread -- sh -c 'sleep 1; echo one; sleep 0.2; echo two; echo ran > "$0"; exit 3' "$2" | true`,
		programs.Coordctl, cluster.Endpoints()[0], filepath.Join(dir, "unread"))
	if err != nil || result.Code != 0 || !strings.Contains(result.Stderr, "coordctl: not all of the command's stdout could be passed on: broken pipe") {
		t.Errorf("%+v, %v", result, err)
	}
	awaitFile(t, filepath.Join(dir, "unread"))
	again := startRun(t, cluster.Endpoints(), "--key", "unread", "--", "sh", "-c", `sleep 1; echo one; sleep 0.2; echo two; echo ran > "$0"; exit 3`, filepath.Join(dir, "unread"))
	again.expect(t, 3)
	if again.stdout.String() != "one\ntwo\n" {
		t.Errorf("replayed %q", &again.stdout)
	}
	awaitFile(t, path)
}

// A command that has ended is recorded although nobody takes what it said, so that it is not run
// again whatever becomes of coordctl then. Who takes it later gets all of it.
func TestRunIsRecordedBeforeItsOutputIsTaken(t *testing.T) {
	t.Parallel()
	cluster := process.Start(t, programs, 1)
	for _, key := range []string{"killed", "taken"} {
		ran := filepath.Join(t.TempDir(), "ran")
		arguments := []string{"--key", key, "--", "sh", "-c", `head -c 100000 /dev/zero; echo ran >> "$0"; exit 3`, ran}
		caller := newRun(t, cluster.Endpoints(), arguments...)
		reader, stdout, err := os.Pipe()
		must(t, err)
		defer reader.Close()
		caller.command.Stdout = stdout
		caller.start(t)
		must(t, stdout.Close())
		awaitFile(t, ran)
		for deadline := time.Now().Add(runWithin / 4); recordOf(t, cluster, key).State != "COMMITTED"; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it is not recorded")
			}
		}
		if key == "killed" {
			must(t, caller.command.Process.Kill())
		} else {
			if n, err := io.Copy(io.Discard, reader); n != 100000 || err != nil {
				t.Errorf("%d bytes were passed on, %v", n, err)
			}
			caller.expect(t, 3)
		}
		again := startRun(t, cluster.Endpoints(), arguments...)
		again.expect(t, 3)
		if got := lines(t, ran); len(got) != 1 || again.stdout.Len() != 64<<10 {
			t.Errorf("%s: it ran %d times, and %d bytes were replayed", key, len(got), again.stdout.Len())
		}
	}
}
