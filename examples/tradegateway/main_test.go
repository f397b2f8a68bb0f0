package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/test/process"
)

// within bounds every wait of these tests. It is no measure of anything.
const within = 2 * time.Minute

// What TestMain has built.
var (
	programs process.Programs
	gateways string // the program of this package
	fakes    string // that of ./exchange
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "tradegateway-")
	if err == nil {
		defer os.RemoveAll(dir)
		programs, err = process.Build(dir)
	}
	if err == nil {
		gateways, fakes = filepath.Join(dir, "tradegateway"), filepath.Join(dir, "exchange")
		err = build(dir, ".", "./exchange")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	http.DefaultClient.CloseIdleConnections()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// build builds programs into a directory, with the race detector if the tests have it.
func build(dir string, packages ...string) error {
	arguments := []string{"build", "-o", dir + string(filepath.Separator)}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, setting := range info.Settings {
			if setting.Key == "-race" {
				arguments = append(arguments, "-race="+setting.Value)
			}
		}
	}
	out, err := exec.CommandContext(context.Background(), "go", append(arguments, packages...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// must ends the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually waits until something is so.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(within); !so(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("not so after %v: %s", within, what)
		}
	}
}

// program is one process of ours, and what it prints.
type program struct {
	command *exec.Cmd
	ended   chan struct{}

	mu     sync.Mutex
	output bytes.Buffer
}

// start starts a program and kills it when the test ends.
func start(t *testing.T, path string, variables []string, arguments ...string) *program {
	t.Helper()
	p := &program{command: exec.CommandContext(context.Background(), path, arguments...), ended: make(chan struct{})}
	p.command.Stdout, p.command.Stderr = p, p
	p.command.SysProcAttr = dies()
	p.command.Env = append(os.Environ(), variables...)
	must(t, p.command.Start())
	go func() {
		defer close(p.ended)
		_ = p.command.Wait() // what it ended with is in ProcessState
	}()
	t.Cleanup(func() {
		p.kill()
		said := p.said()
		if strings.Contains(said, "WARNING: DATA RACE") || strings.Contains(said, "panic: ") {
			t.Errorf("%s had a data race or a panic", filepath.Base(path))
		}
		if t.Failed() {
			t.Logf("the end of the output of %s:\n%s", filepath.Base(path), said[max(0, len(said)-16<<10):])
		}
	})
	return p
}

// Write takes what the process prints.
func (p *program) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.Write(text)
}

func (p *program) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.output.String()
}

// kill is kill -9.
func (p *program) kill() {
	_ = p.command.Process.Kill() // it may have ended
	<-p.ended
}

// stop asks the process to end, and returns its exit code.
func (p *program) stop(t *testing.T) int {
	t.Helper()
	must(t, p.command.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.ended:
	case <-time.After(within):
		t.Fatal("the process does not end")
	}
	return p.command.ProcessState.ExitCode()
}

var listening = regexp.MustCompile(`listening"?[ ,]"?address"?[=:]"?(127\.0\.0\.1:[0-9]+)`)

// address waits until the process listens, and returns where.
func (p *program) address(t *testing.T) string {
	t.Helper()
	var found []string
	eventually(t, "it listens", func() bool {
		select {
		case <-p.ended:
			t.Fatalf("it ended: %s", p.said())
		default:
		}
		found = listening.FindStringSubmatch(p.said())
		return found != nil
	})
	return found[1]
}

// market is a fake exchange.
type market struct {
	*program
	url string
}

func open(t *testing.T) *market {
	t.Helper()
	p := start(t, fakes, nil, "--listen", "127.0.0.1:0")
	return &market{program: p, url: "http://" + p.address(t)}
}

// fails arranges how the next submissions of a symbol go wrong. Each is JSON.
func (m *market) fails(t *testing.T, symbol string, faults ...string) {
	t.Helper()
	body := "[" + strings.Join(faults, ",") + "]"
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, m.url+"/faults/"+symbol, strings.NewReader(body))
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		t.Fatalf("faults %s: %s", body, response.Status)
	}
}

// fills returns what the exchange has filled of a symbol, by its own count.
func (m *market) fills(t *testing.T, symbol string) []fill {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, m.url+"/fills", nil)
	must(t, err)
	response, err := http.DefaultClient.Do(request)
	must(t, err)
	defer response.Body.Close()
	var all, those []fill
	must(t, json.NewDecoder(response.Body).Decode(&all))
	for _, f := range all {
		if f.Symbol == symbol {
			those = append(those, f)
		}
	}
	return those
}

// received waits until so many submissions of a symbol have reached the exchange.
func (m *market) received(t *testing.T, symbol string, times int) {
	t.Helper()
	eventually(t, "the exchange has received "+symbol, func() bool {
		return strings.Count(m.said(), "msg=received symbol="+symbol+" ") >= times
	})
}

// turned waits until an order that lay in the queue too long has had its turn.
func (m *market) turned(t *testing.T, symbol string) {
	t.Helper()
	eventually(t, "the order of "+symbol+" has had its turn", func() bool {
		return strings.Contains(m.said(), `msg="refused: too late" symbol=`+symbol+" ") || len(m.fills(t, symbol)) > 1
	})
}

// desk is a gateway, over all its lives.
type desk struct {
	t         *testing.T
	arguments []string

	mu  sync.Mutex
	now *program
	url string
}

// gate starts a gateway with a namespace of its own, and orders that fail quickly.
func gate(t *testing.T, endpoints []string, live, test *market, more ...string) *desk {
	t.Helper()
	d := &desk{t: t, arguments: append([]string{
		"--listen", "127.0.0.1:0", "--coordinator", strings.Join(endpoints, ","), "--namespace", t.Name(),
		"--venue", "sim:live=" + live.url, "--venue", "sim:test=" + test.url,
		"--pending-ttl", "4s", "--valid-for", "1s", "--lookup-lag", "100ms", "--settle-every", "300ms", "--window", "10m",
	}, more...)}
	d.start()
	return d
}

func (d *desk) start() {
	d.t.Helper()
	p := start(d.t, gateways, []string{tokensVariable + "=alice=a-secret,bob=b-secret"}, d.arguments...)
	url := "http://" + p.address(d.t) + "/v1/alerts"
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now, d.url = p, url
}

// process returns the gateway's process, and where it takes alerts.
func (d *desk) process() (*program, string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.now, d.url
}

// answer is what a sender gets.
type answer struct {
	status   int
	body     string
	replayed bool
	Code     string // of a problem
	Success  *bool
	Order    fill
}

func (a answer) filled() bool { return a.status == http.StatusOK && a.Success != nil && *a.Success }

func (a answer) String() string {
	return fmt.Sprintf("%d %s (replayed: %v)", a.status, a.body, a.replayed)
}

// sender sends one alert.
type sender struct {
	desk  *desk
	token string
	key   string // "": none
	body  string
}

// try sends the alert once.
func (s sender) try(ctx context.Context) (answer, error) {
	_, url := s.desk.process()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(s.body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Authorization", "Bearer "+s.token)
	if s.key != "" {
		request.Header.Set("Idempotency-Key", s.key)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	a := answer{status: response.StatusCode, body: string(body), replayed: response.Header.Get("Idempotent-Replayed") == "true"}
	if err == nil {
		err = json.Unmarshal(body, &a)
	}
	return a, err
}

// once sends the alert once, and must get an answer.
func (s sender) once(t *testing.T) answer {
	t.Helper()
	a, err := s.try(t.Context())
	must(t, err)
	return a
}

// insist sends the alert until it is answered as filled, as a sender with patience does.
// It gives up on an answer after which nobody should send again.
func (s sender) insist(ctx context.Context) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		a, err := s.try(ctx)
		switch {
		case err != nil: // the gateway is away, or was killed
		case a.filled():
			return a, nil
		case a.status == http.StatusOK, a.status == http.StatusConflict, a.status >= 500:
		default:
			return a, fmt.Errorf("it is refused: %v", a)
		}
		select {
		case <-ctx.Done():
			return a, fmt.Errorf("not filled after %v: %v, %w", within, a, err)
		case <-ticker.C:
		}
	}
}

// alertOf returns an alert in JSON.
func alertOf(symbol, action, quantity, mode string) string {
	return fmt.Sprintf(`{"exchange":"sim","symbol":%q,"action":%q,"quantity":%s,"mode":%q,"comment":"crossed"}`, symbol, action, quantity, mode)
}
