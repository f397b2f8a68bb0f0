package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	endWithin = 30 * time.Second      // the longest that a process may take to end
	pollEvery = 20 * time.Millisecond // between two looks at whether something is so
)

// Node is one node with all its lives. Its methods may be called from any goroutine.
type Node struct {
	Name   string
	Dir    string // its data directory
	Client string // host:port of its gRPC services
	Peer   string // host:port for the other nodes

	program   string
	arguments []string
	output    string // a file
	conn      *grpc.ClientConn

	mu        sync.Mutex
	variables []string // of its environment, beside those of the test
	life      *life    // nil while it is down
}

// life is one process.
type life struct {
	command *exec.Cmd
	ended   chan struct{}
}

// ErrRunning reports that a node is running already, or is not.
var ErrRunning = errors.New("the node is not in the state for that")

// Conn returns the connection to the node's gRPC services, which outlives its processes.
func (n *Node) Conn() *grpc.ClientConn { return n.conn }

// Use makes the next life one of another program, with more variables in its environment
// (NAME=value). "" stands for the program that it has.
func (n *Node) Use(program string, variables ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if program != "" {
		n.program = program
	}
	n.variables = append(n.variables, variables...)
}

// Arguments returns what the process is started with.
func (n *Node) Arguments() []string { return slices.Clone(n.arguments) }

// Start starts the process and does not wait for what it does. More flags come in place of
// the node's own of the same names.
func (n *Node) Start(more ...string) error { return n.StartUnder(nil, more...) }

// StartUnder is Start with a command before the program's, such as a tracer, that ends
// up as the program itself, with the same process id.
func (n *Node) StartUnder(prefix []string, more ...string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != nil {
		return fmt.Errorf("start %s: %w", n.Name, ErrRunning)
	}
	out, err := os.OpenFile(n.output, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close() //nolint:errcheck // the process has it as its own by then
	line := slices.Concat(prefix, []string{n.program}, without(n.arguments, more), more)
	started := &life{command: exec.CommandContext(context.Background(), line[0], line[1:]...), ended: make(chan struct{})}
	started.command.Stdout, started.command.Stderr = out, out
	started.command.SysProcAttr = attributes()
	started.command.Env = append(environment(), n.variables...)
	if err := started.command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.Name, err)
	}
	n.life = started
	go func() {
		defer close(started.ended)
		_ = started.command.Wait() // what it ended with is in ProcessState
	}()
	return nil
}

// without returns the flags, each with its value behind it, that are not among the others.
func without(flags, others []string) (left []string) {
	for i := 0; i < len(flags); i++ {
		name := flags[i]
		valued := i+1 < len(flags) && !strings.HasPrefix(flags[i+1], "--")
		if !slices.Contains(others, name) {
			left = append(left, name)
			if valued {
				left = append(left, flags[i+1])
			}
		}
		if valued {
			i++
		}
	}
	return left
}

func (n *Node) current() (*life, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == nil {
		return nil, fmt.Errorf("%s is down: %w", n.Name, ErrRunning)
	}
	return n.life, nil
}

func (n *Node) signal(which syscall.Signal) (*life, error) {
	running, err := n.current()
	if err != nil {
		return nil, err
	}
	if err := running.command.Process.Signal(which); err != nil {
		return nil, fmt.Errorf("%v to %s: %w", which, n.Name, err)
	}
	return running, nil
}

// PID returns the id of the process, 0 where there is none.
func (n *Node) PID() int {
	running, err := n.current()
	if err != nil {
		return 0
	}
	return running.command.Process.Pid
}

// Kill is kill -9; it returns once the process is gone. That the process had ended
// by itself before is an error: nobody asked it to.
func (n *Node) Kill() error {
	running, err := n.signal(syscall.SIGKILL)
	if err != nil {
		return err
	}
	if _, err := n.wait(running, endWithin); err != nil {
		return err
	}
	if status, ok := running.command.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() {
		return fmt.Errorf("%s had ended by itself: %v", n.Name, running.command.ProcessState)
	}
	return nil
}

// Pause is SIGSTOP: the process does nothing until Resume, and its ports stay open.
func (n *Node) Pause() error {
	_, err := n.signal(syscall.SIGSTOP)
	return err
}

// Resume is SIGCONT.
func (n *Node) Resume() error {
	_, err := n.signal(syscall.SIGCONT)
	return err
}

// Stop asks the process to end, waits for it and returns its exit code.
func (n *Node) Stop() (int, error) {
	running, err := n.signal(syscall.SIGTERM)
	if err != nil {
		return 0, err
	}
	return n.wait(running, endWithin)
}

// Wait waits until the process ends by itself and returns its exit code.
func (n *Node) Wait(within time.Duration) (int, error) {
	running, err := n.current()
	if err != nil {
		return 0, err
	}
	return n.wait(running, within)
}

func (n *Node) wait(running *life, within time.Duration) (int, error) {
	select {
	case <-running.ended:
	case <-time.After(within):
		return 0, fmt.Errorf("%s did not end within %v", n.Name, within)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == running {
		n.life = nil
	}
	return running.command.ProcessState.ExitCode(), nil
}

// Running reports whether there is a process, paused or not, that has not ended.
func (n *Node) Running() bool {
	running, err := n.current()
	if err != nil {
		return false
	}
	select {
	case <-running.ended:
		return false
	default:
		return true
	}
}

// Serving waits until the node knows a leader of every shard.
func (n *Node) Serving(within time.Duration) error {
	health := healthv1.NewHealthClient(n.conn)
	var last string
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(pollEvery) {
		if !n.Running() {
			return fmt.Errorf("%s ended while it was waited for", n.Name)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		answer, err := health.Check(ctx, &healthv1.HealthCheckRequest{})
		cancel()
		if err == nil && answer.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return nil
		}
		last = fmt.Sprint(answer.GetStatus(), " ", err)
	}
	return fmt.Errorf("%s does not serve after %v: %s", n.Name, within, last)
}

// Output returns everything that the node has printed in all its lives.
func (n *Node) Output() string {
	text, err := os.ReadFile(n.output)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	return string(text)
}

// Said waits until the node has printed a text.
func (n *Node) Said(text string, within time.Duration) error {
	for deadline := time.Now().Add(within); ; time.Sleep(pollEvery) {
		if strings.Contains(n.Output(), text) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s has not said %q within %v", n.Name, text, within)
		}
	}
}

// end kills what is left.
func (n *Node) end() error {
	if running, err := n.signal(syscall.SIGKILL); err == nil {
		_, err = n.wait(running, endWithin)
		return err
	}
	return nil
}
