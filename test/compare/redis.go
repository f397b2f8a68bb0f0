package compare

import (
	"context"
	"crypto/rand"
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/atmostonce/coordinator/test/process"
)

// redisServer is one Redis that syncs its log before it answers, with a connection for
// each caller: with fewer it would wait for its callers.
type redisServer struct {
	node   *process.Node
	client *redis.Client
}

func startRedis(t testing.TB, program string) *redisServer {
	t.Helper()
	address := process.FreeAddress(t)
	host, port, _ := strings.Cut(address, ":")
	n := process.NewProgram(t, program, "--bind", host, "--port", port, "--dir", t.TempDir(),
		// Each write is in the file, and the file synced, before its answer. No snapshots beside.
		"--appendonly", "yes", "--appendfsync", "always", "--save", "")
	if err := n.Start(); err != nil {
		t.Fatal(err)
	}
	r := &redisServer{node: n, client: redis.NewClient(&redis.Options{
		Addr: address, PoolSize: callersMost, PoolTimeout: callWithin, ReadTimeout: callWithin, MaxRetries: -1,
	})}
	t.Cleanup(func() { _ = r.client.Close() })
	await(t, "Redis", func(ctx context.Context) error { return r.client.Ping(ctx).Err() })
	return r
}

func (r *redisServer) pids() []int { return []int{r.node.PID()} }

const (
	pendingWindow   = 5 * time.Minute
	retentionWindow = 24 * time.Hour
)

// pair is SET NX PX, then SET XX PX.
func (r *redisServer) pair(ctx context.Context, _ int) error {
	name := newName()
	err := r.client.SetArgs(ctx, name, rand.Text(), redis.SetArgs{Mode: "NX", TTL: pendingWindow}).Err()
	if errors.Is(err, redis.Nil) {
		return errTaken
	}
	if err != nil {
		return err
	}
	err = r.client.SetArgs(ctx, name, response, redis.SetArgs{Mode: "XX", TTL: retentionWindow}).Err()
	if errors.Is(err, redis.Nil) {
		return errLost
	}
	return err
}

// duplicate is SET NX GET: it changes nothing and returns what the key holds.
func (r *redisServer) duplicate(ctx context.Context, _ int) error {
	held, err := r.client.SetArgs(ctx, taken, rand.Text(), redis.SetArgs{Mode: "NX", Get: true, TTL: pendingWindow}).Result()
	switch {
	case errors.Is(err, redis.Nil):
		return errTwice
	case err != nil:
		return err
	case held != response:
		return errLost
	}
	return nil
}

func (r *redisServer) takeKey(t testing.TB) {
	t.Helper()
	if err := r.client.Set(t.Context(), taken, response, retentionWindow).Err(); err != nil {
		t.Fatal(err)
	}
}

func redisVersion(t testing.TB, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	for field := range strings.FieldsSeq(string(out)) {
		if version, ok := strings.CutPrefix(field, "v="); ok {
			return "Redis " + version
		}
	}
	return strings.TrimSpace(string(out))
}

// await waits until a server answers.
func await(t testing.TB, name string, ask func(context.Context) error) {
	t.Helper()
	var last error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		last = ask(ctx)
		cancel()
		if last == nil {
			return
		}
	}
	t.Fatalf("%s does not serve: %v", name, last)
}
