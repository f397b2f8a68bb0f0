package compare

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/bench/echo"
	"github.com/atmostonce/coordinator/test/load"
)

func TestMain(m *testing.M) {
	echo.Main()
	os.Exit(m.Run())
}

// find returns where a program is: where a variable says, or where the system has it.
// None is told of, and "".
func find(t testing.TB, variable, name, pattern string) string {
	t.Helper()
	if given := os.Getenv(variable); given != "" {
		absolute, err := filepath.Abs(given)
		if err != nil {
			t.Fatal(err)
		}
		return absolute
	}
	if found, err := exec.LookPath(name); err == nil {
		return found
	}
	if matches, err := filepath.Glob(pattern); err == nil && len(matches) > 0 {
		return matches[len(matches)-1]
	}
	t.Logf("SKIPPED: %s is not installed; %s can name it", name, variable)
	return ""
}

func findEtcd(t testing.TB) string {
	t.Helper()
	return find(t, "ETCD", "etcd", filepath.Join("..", "..", "bin", "etcd"))
}

func findRedis(t testing.TB) string {
	t.Helper()
	return find(t, "REDIS_SERVER", "redis-server", "/usr/bin/redis-server")
}

// findPostgres returns the directory of its programs, which Debian keeps out of PATH.
func findPostgres(t testing.TB) string {
	t.Helper()
	initdb := find(t, "INITDB", "initdb", "/usr/lib/postgresql/*/bin/initdb")
	if initdb == "" {
		return ""
	}
	return filepath.Dir(initdb)
}

// startEcho returns the contender that only calls and answers.
func startEcho(t testing.TB) contender {
	t.Helper()
	address, pid := echo.Start(t)
	var services []coordinatorv1.CoordinatorServiceClient
	for range connections {
		connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = connection.Close() })
		services = append(services, coordinatorv1.NewCoordinatorServiceClient(connection))
	}
	return contender{
		name: "gRPC echo",
		do: func(ctx context.Context, caller int) error {
			_, err := services[caller%connections].Reserve(ctx, &coordinatorv1.ReserveRequest{
				Identity: identityOf(takenKey), AttemptId: load.AttemptID(),
			})
			return err
		},
		servers: func() []int { return []int{pid} },
	}
}

// TestJobs has every system do its job once: what is measured does what it is measured
// for, and refuses a duplicate.
func TestJobs(t *testing.T) {
	once := func(t *testing.T, jobs ...func(context.Context, int) error) {
		t.Helper()
		for i, job := range jobs {
			ctx, cancel := context.WithTimeout(t.Context(), callWithin)
			if err := job(ctx, 0); err != nil {
				t.Errorf("job %d: %v", i, err)
			}
			cancel()
		}
	}
	t.Run("coordinator", func(t *testing.T) {
		c := startCoordinator(t, buildCoordinator(t, false), 3, shardsDefault)
		c.lookUp(t)
		c.takeKey(t)
		once(t, c.reserve, c.pair, c.streamed)
		before := c.logged(t)
		once(t, c.duplicate, c.duplicateSpread)
		if after := c.logged(t); after != before {
			t.Errorf("two duplicates wrote %d log entries", after-before)
		}
	})
	t.Run("etcd", func(t *testing.T) {
		program := findEtcd(t)
		if program == "" {
			t.Skip("there is no etcd")
		}
		e := startEtcd(t, program)
		e.takeKey(t)
		once(t, e.leased, e.shared, e.putIfAbsent, e.duplicate)
	})
	t.Run("Redis", func(t *testing.T) {
		program := findRedis(t)
		if program == "" {
			t.Skip("there is no Redis")
		}
		r := startRedis(t, program)
		r.takeKey(t)
		once(t, r.pair, r.duplicate)
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		programs := findPostgres(t)
		if programs == "" {
			t.Skip("there is no PostgreSQL")
		}
		p := startPostgres(t, programs)
		p.takeKey(t)
		once(t, p.pair(plain), p.pair(swept), p.duplicate)
	})
	t.Run("echo", func(t *testing.T) { once(t, startEcho(t).do) })
}
