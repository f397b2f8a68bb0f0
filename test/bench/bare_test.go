package bench

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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

// disk writes and syncs 4 KiB at a time, which is the least that an acknowledged
// call costs.
type disk struct {
	file  *os.File
	block []byte
	at    int64
	fresh bool // each block is written for the first time, as in a log
}

const (
	blockBytes = 4 << 10
	diskBytes  = 32 << 20
)

func newDisk(t testing.TB, fresh bool) *disk {
	t.Helper()
	d := &disk{block: make([]byte, blockBytes), fresh: fresh}
	for i := range d.block {
		d.block[i] = byte(i)
	}
	d.open(t)
	return d
}

func (d *disk) open(t testing.TB) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "bare"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	if err := preallocate(file, diskBytes); err != nil {
		t.Fatal(err)
	}
	for at := int64(0); !d.fresh && at < diskBytes; at += blockBytes {
		if _, err := file.WriteAt(d.block, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := file.Sync(); err != nil {
		t.Fatal(err)
	}
	d.file, d.at = file, 0
}

// write writes and syncs one block and says how long it took.
func (d *disk) write(t testing.TB) time.Duration {
	t.Helper()
	if d.at == diskBytes {
		d.open(t)
	}
	began := time.Now()
	if _, err := d.file.WriteAt(d.block, d.at); err != nil {
		t.Fatal(err)
	}
	if err := syncData(d.file); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	d.at += blockBytes
	return took
}

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

// report adds a duration in microseconds to a benchmark's line.
func report(b *testing.B, d time.Duration, unit string) {
	b.ReportMetric(float64(d.Nanoseconds())/1e3, unit)
}
