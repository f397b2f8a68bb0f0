package bench

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
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

// echoing is the environment variable that makes a copy of the test program an echo
// server: a process of its own, as the coordinator is. It prints where it listens.
const echoing = "COORDINATOR_BENCH_ECHO"

func TestMain(m *testing.M) {
	if os.Getenv(echoing) != "" {
		fmt.Fprintln(os.Stderr, serveEcho())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func programs(b *testing.B) process.Programs {
	b.Helper()
	programs, err := process.Build(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	return programs
}

// echo answers a Reserve at once, with as many bytes as a grant has.
type echo struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
}

func (echo) Reserve(context.Context, *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token:     "AQAAAAAAAAAB7c7-TK87MpYfigjB0w5dPQ",
		Fence:     1,
		Attempt:   1,
		Previous:  &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_NONE},
		Remaining: durationpb.New(5*time.Minute - time.Microsecond),
		Waited:    durationpb.New(time.Millisecond + time.Microsecond),
	}}}, nil
}

func serveEcho() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	server := grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServiceServer(server, echo{})
	return server.Serve(listener)
}

// startEcho starts an echo server and returns a client of it.
func startEcho(t testing.TB) coordinatorv1.CoordinatorServiceClient {
	t.Helper()
	server := exec.CommandContext(context.Background(), os.Args[0])
	server.Env = append(os.Environ(), echoing+"=yes")
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
	address, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	connection, err := grpc.NewClient(strings.TrimSpace(address), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	return coordinatorv1.NewCoordinatorServiceClient(connection)
}

// reserve sends one Reserve and says how long it took.
func reserve(t testing.TB, client coordinatorv1.CoordinatorServiceClient, key string) time.Duration {
	t.Helper()
	request := &coordinatorv1.ReserveRequest{
		Identity:  &coordinatorv1.Identity{Namespace: "default", Principal: "token-7f3a", Operation: "POST /v1/orders", Key: key},
		AttemptId: load.AttemptID(),
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	began := time.Now()
	answer, err := client.Reserve(ctx, request)
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	if answer.GetGranted() == nil {
		t.Fatalf("key %s was not granted: %v", key, answer)
	}
	return took
}

// syncOnce writes and syncs one block and says how long it took.
func syncOnce(t testing.TB, disk *load.Disk) time.Duration {
	t.Helper()
	took, err := disk.Write()
	if err != nil {
		t.Fatal(err)
	}
	return took
}

// report adds a duration in microseconds to a benchmark's line.
func report(b *testing.B, d time.Duration, unit string) {
	b.ReportMetric(float64(d.Nanoseconds())/1e3, unit)
}
