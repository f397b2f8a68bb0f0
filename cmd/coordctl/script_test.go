package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/atmostonce/coordinator/internal/certs"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"coordctl": main})
}

// TestScripts runs every command as a process against one real node, by the scripts in
// testdata/script. Each script has keys of its own. Beside testscript's commands they
// have:
//
//	exits CODE program arguments…   runs it and compares the exit code
//	keep NAME path                  puts a field of the JSON on stdout into a variable
//	json path value                 compares a field of the JSON on stdout or stderr
//	freeport NAME                   puts 127.0.0.1 and a port that nobody has into a variable
func TestScripts(t *testing.T) {
	address := startNode(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv(variableOf(endpointsFlag), address)
			// Under the race detector a process would sleep a second before it exits.
			env.Setenv("GORACE", "atexit_sleep_ms=0")
			return inputs(env)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits":    exits,
			"keep":     keep,
			"json":     compare,
			"freeport": freePort,
		},
	})
}

// inputs makes what a script cannot hold: its files are text, and its lines are short.
func inputs(env *testscript.Env) error {
	env.Setenv("ESCAPE", "a\x1b[31mb")
	env.Setenv("LINES", "1\r\nSet-Cookie: a=b")
	env.Setenv("LONG", strings.Repeat("n", 65))
	for name, content := range map[string]string{
		"BINARY":  "\xff\xfe",
		"LARGEST": strings.Repeat("x", bodyBytesMax),
		"LARGE":   strings.Repeat("x", bodyBytesMax+1),
	} {
		path := filepath.Join(env.WorkDir, strings.ToLower(name))
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
		env.Setenv(name, path)
	}
	return nil
}

// startNode starts a node by itself and returns where it listens, once each shard has a leader.
func startNode(t *testing.T) string {
	t.Helper()
	address := startSecured(t, certs.Files{})
	led(t, address)
	return address
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE program arguments…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
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
}

// field returns a field of the first JSON object of a file, by a path such as
// response.headers.0.name.
func field(ts *testscript.TestScript, file, path string) string {
	var value any
	decoder := json.NewDecoder(strings.NewReader(ts.ReadFile(file)))
	decoder.UseNumber()
	ts.Check(decoder.Decode(&value))
	for _, step := range strings.Split(path, ".") {
		switch inside := value.(type) {
		case map[string]any:
			found, ok := inside[step]
			if !ok {
				return "absent"
			}
			value = found
		case []any:
			i, err := strconv.Atoi(step)
			ts.Check(err)
			if i >= len(inside) {
				return "absent"
			}
			value = inside[i]
		default:
			ts.Fatalf("%s: there is nothing inside %v", path, value)
		}
	}
	return fmt.Sprint(value)
}

func keep(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: keep NAME path")
	}
	value := field(ts, "stdout", args[1])
	if value == "absent" || value == "" {
		ts.Fatalf("%s is %q", args[1], value)
	}
	ts.Setenv(args[0], value)
}

func compare(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: json path value")
	}
	file := "stdout"
	if strings.HasPrefix(args[0], "error.") {
		file = "stderr"
	}
	if got := field(ts, file, args[0]); (got == args[1]) == neg {
		ts.Fatalf("%s is %q", args[0], got)
	}
}

func freePort(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: freeport NAME")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Setenv(args[0], listener.Addr().String())
	ts.Check(listener.Close())
}
