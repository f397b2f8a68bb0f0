package disk

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Fault is what befalls system calls of a running process.
type Fault struct {
	Calls string   // which, separated by commas
	Does  string   // what, as strace's inject takes it: "error=EIO", "delay_enter=1s"
	Paths []string // only on these files; none: on all
}

// Injection is a fault under way.
type Injection struct {
	tracer *exec.Cmd
	ended  chan struct{}
}

// Inject begins a fault in a process, and returns once it does. It goes on until the
// process ends or [Injection.End].
func Inject(pid int, fault Fault, output string) (*Injection, error) {
	arguments := []string{
		"-f", "-p", strconv.Itoa(pid), "-o", output,
		"-e", "trace=" + fault.Calls, "-e", "inject=" + fault.Calls + ":" + fault.Does, "-e", "signal=none",
	}
	for _, path := range fault.Paths {
		arguments = append(arguments, "-P", path)
	}
	said, err := os.Create(output + ".said")
	if err != nil {
		return nil, err
	}
	defer said.Close()
	i := &Injection{tracer: exec.Command("strace", arguments...), ended: make(chan struct{})}
	i.tracer.Stderr = said
	i.tracer.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := i.tracer.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(i.ended)
		_ = i.tracer.Wait() // it ends as its tracee does
	}()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		text, err := os.ReadFile(said.Name())
		if err != nil {
			return nil, errors.Join(err, i.End())
		}
		if strings.Contains(string(text), " attached") {
			return i, nil
		}
		select {
		case <-i.ended:
			return nil, fmt.Errorf("strace has ended: %s", text)
		default:
		}
	}
	return nil, errors.Join(errors.New("strace did not attach within 20 s"), i.End())
}

// Abandon ends the fault where End cannot: strace does not let go of a call that it holds
// back, nor of the process, although that has ended itself.
func (i *Injection) Abandon() {
	_ = i.tracer.Process.Kill() // it may be ending by itself
	<-i.ended
}

// End lets the process go on without the fault.
func (i *Injection) End() error {
	select {
	case <-i.ended:
		return nil
	default:
	}
	_ = i.tracer.Process.Signal(syscall.SIGTERM) // it may be ending by itself
	select {
	case <-i.ended:
		return nil
	case <-time.After(10 * time.Second):
	}
	_ = i.tracer.Process.Kill()
	<-i.ended
	return errors.New("strace had to be killed")
}
