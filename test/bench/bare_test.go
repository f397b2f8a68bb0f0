package bench

import (
	"context"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/bench/echo"
	"github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

func TestMain(m *testing.M) {
	echo.Main()
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

// startEcho starts an echo server and returns a client of it.
func startEcho(t testing.TB) coordinatorv1.CoordinatorServiceClient {
	t.Helper()
	address, _ := echo.Start(t)
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
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
