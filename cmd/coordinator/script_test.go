package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"coordinator": main})
}

// TestScripts runs the program as a process, by the scripts in testdata/script. Beside
// testscript's own commands they have:
//
//	exits CODE program arguments…   runs it and compares the exit code
//	freeport NAME…                  puts 127.0.0.1 and a free port into variables
//	ready ADDRESS                   waits until /readyz there says ok
//	notready ADDRESS                waits until /readyz there says anything else, into stdout
//	term DIRECTORY                  sends SIGTERM to the process that uses it
//	hangup DIRECTORY                sends SIGHUP to it
//	pause DIRECTORY                 stops that process where it is, until resume
//	resume DIRECTORY                lets it go on
//	overwrite FILE TEXT             replaces a file's first bytes
//	killed DIRECTORY                sends SIGKILL to the process that uses it
//	scrape ADDRESS                  what /metrics there says, into stdout
//	metric ADDRESS SERIES VALUE     waits until the series with these labels add up to it
//	hold ADDRESS KEY                reserves a key for 100 ms, to be in doubt after that
//	resolve ADDRESS KEY             settles it: nothing happened
func TestScripts(t *testing.T) {
	hearHangups(t)
	testscript.Run(t, testscript.Params{
		Dir:      "testdata/script",
		Deadline: time.Now().Add(2 * time.Minute),
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":     exits,
			"freeport":  freePort,
			"ready":     ready,
			"notready":  notReady,
			"overwrite": overwrite,
			"term":      signaling(syscall.SIGTERM),
			"hangup":    signaling(syscall.SIGHUP),
			"pause":     signaling(syscall.SIGSTOP),
			"resume":    signaling(syscall.SIGCONT),
			"killed":    signaling(syscall.SIGKILL),
			"scrape":    scrape,
			"metric":    metric,
			"hold":      called(hold),
			"resolve":   called(settle),
		},
	})
}

// hearHangups has what a test starts hear SIGHUP, also where the tests are run by nohup: what is
// caught here is not ignored there.
func hearHangups(t *testing.T) {
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(caught) })
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program arguments…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	began := time.Now()
	err = ts.Exec(args[1], args[2:]...)
	code := 0
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if code != want {
		ts.Fatalf("exit code %d, not %d", code, want)
	}
	ts.Logf("ended after %v", time.Since(began))
}

func freePort(ts *testscript.TestScript, neg bool, args []string) {
	for _, name := range args {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		ts.Check(err)
		ts.Setenv(name, l.Addr().String())
		ts.Check(l.Close())
	}
}

// poll asks until done says so.
func poll(ts *testscript.TestScript, what string, done func() bool) {
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if done() {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
	ts.Fatalf("waited for %s in vain", what)
}

func get(address string) (int, string) {
	client := http.Client{Timeout: time.Second}
	answer, err := client.Get("http://" + address + "/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

func ready(ts *testscript.TestScript, neg bool, args []string) {
	last := ""
	poll(ts, fmt.Sprintf("%s to be ready", args[0]), func() bool {
		code, text := get(args[0])
		if text != last {
			last = text
			ts.Logf("%d %s", code, text)
		}
		return code == http.StatusOK
	})
}

func notReady(ts *testscript.TestScript, neg bool, args []string) {
	poll(ts, "an answer of "+args[0], func() bool {
		code, text := get(args[0])
		if code != http.StatusServiceUnavailable || len(args) > 1 && !strings.Contains(text, args[1]) {
			return false
		}
		_, err := fmt.Fprint(ts.Stdout(), text)
		ts.Check(err)
		return true
	})
}

func signaling(which syscall.Signal) func(ts *testscript.TestScript, neg bool, args []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		pid := 0
		poll(ts, "a process that uses "+args[0], func() bool {
			text, err := os.ReadFile(filepath.Join(ts.MkAbs(args[0]), "LOCK"))
			if err == nil {
				pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
			}
			return err == nil
		})
		ts.Check(syscall.Kill(pid, which))
	}
}

func overwrite(ts *testscript.TestScript, neg bool, args []string) {
	file, err := os.OpenFile(ts.MkAbs(args[0]), os.O_WRONLY, 0)
	ts.Check(err)
	_, err = file.WriteAt([]byte(args[1]), 0)
	ts.Check(errors.Join(err, file.Close()))
}
