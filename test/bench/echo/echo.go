// Package echo is the least that a call over gRPC costs: a server that answers every
// Reserve at once, with as many bytes as a grant has. It runs as a process of its own, as
// the coordinator does, which is the test program once more: the TestMain of a package
// that uses it begins with [Main].
package echo

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// variable is the environment variable that makes a copy of the test program a server.
const variable = "COORDINATOR_BENCH_ECHO"

// Main serves if this process was started by [Start], and returns only if it was not.
func Main() {
	if os.Getenv(variable) == "" {
		return
	}
	fmt.Fprintln(os.Stderr, serve())
	os.Exit(1)
}

type service struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
}

// Reserve implements coordinatorv1.CoordinatorServiceServer.
func (service) Reserve(context.Context, *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token:     "AQAAAAAAAAAB7c7-TK87MpYfigjB0w5dPQ",
		Fence:     1,
		Attempt:   1,
		Previous:  &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_NONE},
		Remaining: durationpb.New(5*time.Minute - time.Microsecond),
		Waited:    durationpb.New(time.Millisecond + time.Microsecond),
	}}}, nil
}

// serve prints where it listens.
func serve() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServiceServer(server, service{})
	return server.Serve(listener)
}

// Start starts a server, which ends with the test, and returns its address and process id.
func Start(t testing.TB) (address string, pid int) {
	t.Helper()
	server := exec.CommandContext(context.Background(), os.Args[0])
	server.Env = append(os.Environ(), variable+"=yes")
	server.Stderr = os.Stderr
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line), server.Process.Pid
}
