package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/node"
)

// slow is a node that takes its time to stop.
type slow struct {
	takes  time.Duration
	failed chan struct{}
}

func (s *slow) Done() <-chan struct{} { return s.failed }
func (s *slow) Err() error            { return errors.New("failed") }

func (s *slow) Stop(context.Context) error {
	time.Sleep(s.takes)
	return nil
}

func TestSignals(t *testing.T) {
	for name, c := range map[string]struct {
		second time.Duration // after the first; 0: none
		takes  time.Duration
		want   int
	}{
		"one":                 {0, 3 * time.Second, 0},
		"to a process group":  {time.Millisecond, 3 * time.Second, 0},
		"just within":         {499 * time.Millisecond, 3 * time.Second, 0},
		"two":                 {500 * time.Millisecond, 3 * time.Second, exitFailed},
		"after it has ended":  {4 * time.Second, 3 * time.Second, 0},
		"again, and it hangs": {time.Second, time.Hour, exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				signals := make(chan os.Signal, 2)
				signals <- syscall.SIGTERM
				if c.second > 0 {
					time.AfterFunc(c.second, func() { signals <- syscall.SIGTERM })
				}
				var log bytes.Buffer
				code, err := await(&slow{takes: c.takes, failed: make(chan struct{})}, signals, slog.New(slog.NewTextHandler(&log, nil)))
				if code != c.want || (err == nil) != (c.want == 0) || err != nil && !strings.HasPrefix(err.Error(), "received SIGTERM while stopping") {
					t.Errorf("got %d, %v", code, err)
				}
				if !strings.Contains(log.String(), "signal=SIGTERM") {
					t.Errorf("logged %s", &log)
				}
				time.Sleep(time.Hour) // until it has stopped
			})
		})
	}
}

func TestSignalsToANodeThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &slow{takes: time.Hour, failed: make(chan struct{})}
		signals := make(chan os.Signal, 2)
		signals <- syscall.SIGTERM
		time.AfterFunc(time.Second, func() { close(n.failed) })
		if code, err := await(n, signals, slog.New(slog.DiscardHandler)); code != exitFailed || err == nil {
			t.Errorf("got %d, %v", code, err)
		}
		time.Sleep(2 * time.Hour)
	})
}

// A start that takes its time, or hangs, hears signals.
func TestSignalsDuringTheStart(t *testing.T) {
	failure := errors.New("no such host")
	for name, c := range map[string]struct {
		starts func(ctx context.Context) error // how; nil: at once
		second bool                            // whether there is another signal
		want   string                          // "": it ends with 0
		took   time.Duration
	}{
		"it notices":     {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, false, "", 0},
		"it succeeds":    {func(context.Context) error { time.Sleep(time.Minute); return nil }, false, "", time.Minute},
		"it fails":       {func(context.Context) error { time.Sleep(time.Minute); return failure }, false, failure.Error(), 59 * time.Second},
		"it hangs":       {func(context.Context) error { time.Sleep(24 * time.Hour); return failure }, false, "did not stop within 1h0m0s", time.Hour},
		"twice":          {func(context.Context) error { time.Sleep(24 * time.Hour); return failure }, true, "received SIGTERM while stopping", time.Minute},
		"it had started": {nil, false, "", time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				received := make(chan os.Signal, 2)
				if c.starts == nil {
					c.starts = func(context.Context) error { return nil }
				}
				var at time.Time // of the first one
				time.AfterFunc(time.Second, func() {
					at = time.Now()
					received <- syscall.SIGTERM
				})
				if c.second {
					time.AfterFunc(time.Second+time.Minute, func() { received <- syscall.SIGTERM })
				}
				code, err := begin(func(ctx context.Context) (running, error) {
					if err := c.starts(ctx); err != nil {
						return nil, err
					}
					return &slow{takes: time.Second, failed: make(chan struct{})}, nil
				}, time.Hour, received, slog.New(slog.DiscardHandler))
				if (err == nil) != (c.want == "") || (code == 0) != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %d, %v", code, err)
				}
				if took := time.Since(at); took != c.took {
					t.Errorf("it took %v", took)
				}
				time.Sleep(48 * time.Hour) // until the start is over
			})
		})
	}
}

// A signal that comes before there is a node is a stop in which nothing is wrong, while the
// settings are read, too.
func TestASignalBeforeTheStart(t *testing.T) {
	hearHangups(t)
	for _, which := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		settings := filepath.Join(t.TempDir(), "settings.yaml")
		if err := syscall.Mkfifo(settings, 0o600); err != nil {
			t.Fatal(err)
		}
		command := exec.Command("coordinator", "--config", settings)
		command.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool { return strings.HasPrefix(variable, environmentPrefix) })
		var stderr bytes.Buffer
		command.Stderr = &stderr
		if err := command.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- command.Wait()
			// Where it never came to read, somebody else has to, for the next line to go on.
			if reader, err := os.OpenFile(settings, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil {
				_ = reader.Close()
			}
		}()
		writer, err := os.OpenFile(settings, os.O_WRONLY, 0) // waits until it is read
		if err == nil {
			err = command.Process.Signal(which)
		}
		if err != nil {
			_ = command.Process.Kill()
			t.Error(err)
		}
		if err := <-ended; err != nil || stderr.Len() > 0 {
			t.Errorf("%v: %v, %s", which, err, &stderr)
		}
		_ = writer.Close()
	}
	signals := make(chan os.Signal, 2)
	signals <- syscall.SIGTERM
	o := defaults()
	o.node.DataDir = filepath.Join(t.TempDir(), "d")
	if code, err := serve(o, &lastWord{to: io.Discard}, signals); code != 0 || err != nil {
		t.Errorf("after the settings were read: %d, %v", code, err)
	}
	if _, err := os.Stat(o.node.DataDir); !os.IsNotExist(err) {
		t.Errorf("it was started: %v", err)
	}
}

// Who takes no help does not keep the process from being ended by a signal.
func TestSignalsAreGivenBackBeforeTheLastOutput(t *testing.T) {
	taken, others := make(chan os.Signal, 4), make(chan os.Signal, 4)
	signal.Notify(taken, syscall.SIGUSR1)
	signal.Notify(others, syscall.SIGUSR1) // otherwise it would end this test
	defer signal.Stop(others)
	if code := run([]string{"--help"}, nil, io.Discard, io.Discard, taken); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for range 2 { // the first has been told to all by the time that the second comes
		if err := syscall.Kill(os.Getpid(), syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		<-others
	}
	if len(taken) > 0 {
		t.Error("they were still taken")
	}
}

// Durations in logs have units.
func TestDurationsAreLoggedForPeople(t *testing.T) {
	var out bytes.Buffer
	o := defaults()
	o.logFormat = formatJSON
	newLogger(o, &out, false).Info("x", "took", 776749092*time.Nanosecond, slog.Group("g", "none", time.Duration(0)), "n", 7)
	var line struct {
		Took string
		N    int
		G    struct{ None string }
	}
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Took != "776.749092ms" || line.G.None != "0s" || line.N != 7 {
		t.Errorf("got %s, %v", &out, err)
	}
}

func TestErrorsAreOneLineThatATerminalShows(t *testing.T) {
	var stderr bytes.Buffer
	if code := run([]string{"--\x1b[31mred\u202e\r"}, nil, io.Discard, &stderr, nil); code != exitUsage {
		t.Errorf("exit code %d", code)
	}
	if got, want := stderr.String(), `coordinator: unknown flag: --\x1b[31mred\u202e`+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// However many shards of a directory are damaged, what to do is said once, behind all of it.
func TestWhatToDoAboutDamageIsSaidOnce(t *testing.T) {
	cfg := node.Default()
	cfg.DataDir, cfg.Listen, cfg.Shards, cfg.Logger = t.TempDir(), "127.0.0.1:0", 4, slog.New(slog.DiscardHandler)
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-n.Ready()
	if err := n.Stop(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
	var damaged []string
	for _, shard := range []string{"0000", "0001", "0003"} {
		path := filepath.Join(cfg.DataDir, "shards", shard, "state.db")
		if err := os.WriteFile(path, []byte("damage"), 0o600); err != nil {
			t.Fatal(err)
		}
		damaged = append(damaged, path)
	}
	if err := os.RemoveAll(filepath.Join(cfg.DataDir, "shards", "0002", "state.db")); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	received := make(chan os.Signal, 2)
	code := run([]string{"--data-dir", cfg.DataDir, "--listen", cfg.Listen, "--shards", "4"}, nil, io.Discard, &stderr, received)
	lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
	last := lines[len(lines)-1]
	if code != exitFailed || strings.Count(last, disk.Advice) != 1 || !strings.HasSuffix(last, ": "+disk.Advice) {
		t.Errorf("exit code %d, %s", code, last)
	}
	for _, path := range damaged {
		if !strings.Contains(last, path) {
			t.Errorf("%s is not named: %s", path, last)
		}
	}
}

// Who looks for what has ended a node looks at its last line.
func TestNothingIsLoggedAfterTheLastWord(t *testing.T) {
	var stderr bytes.Buffer
	out := &lastWord{to: &stderr}
	logger := newLogger(defaults(), out, out.isTerminal())
	logger.Info("before")
	out.say("coordinator: the end")
	logger.Info("after")
	if got := stderr.String(); !strings.Contains(got, "before") || !strings.HasSuffix(got, "\ncoordinator: the end\n") {
		t.Errorf("got %q", got)
	}
}

// A reader of the log that stands still holds up neither the node nor its end, and is told what
// it has missed when it goes on.
func TestALogReaderThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, stderr := io.Pipe()
		out := &lastWord{to: stderr, leftOut: func(lines int) []byte { return fmt.Appendf(nil, "left out %d\n", lines) }}
		logger := newLogger(defaults(), out, false)
		text := strings.Repeat("x", 200)
		const lines = 20_000 // more than are kept
		began := time.Now()
		for i := range lines {
			logger.Info(text, "i", i)
		}
		if took := time.Since(began); took > writePatience {
			t.Errorf("whoever logs was held up for %v", took)
		}

		taken := bufio.NewScanner(reader)
		seen, missed := 0, 0
		for missed == 0 && taken.Scan() {
			if _, err := fmt.Sscanf(taken.Text(), "left out %d", &missed); err == nil {
				continue
			}
			var line struct{ I int }
			if err := json.Unmarshal(taken.Bytes(), &line); err != nil || line.I != seen {
				t.Fatalf("line %d is %s, %v", seen, taken.Text(), err)
			}
			seen++
		}
		if missed == 0 || seen+missed != lines {
			t.Errorf("%d lines were seen and %d said to be left out, of %d", seen, missed, lines)
		}
		synctest.Wait()
		if len(out.kept) > 0 || out.bytes != 0 || out.late {
			t.Errorf("%d lines of %d bytes are left, late %v", len(out.kept), out.bytes, out.late)
		}

		// It stands still again, and the node ends.
		for i := range lines {
			logger.Info(text, "i", i)
		}
		began = time.Now()
		out.say("coordinator: the end")
		if took := time.Since(began); took > lastPatience {
			t.Errorf("the end was held up for %v", took)
		}
		logger.Info("after")
		var last []string
		for taken.Scan() {
			if last = append(last, taken.Text()); taken.Text() == "coordinator: the end" {
				break
			}
		}
		if n := len(last); n < 2 || !strings.HasPrefix(last[n-2], "left out ") {
			t.Errorf("it ends with %q", last[max(0, n-2):])
		}
		_ = reader.Close()
	})
}
