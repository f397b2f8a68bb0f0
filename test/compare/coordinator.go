package compare

import (
	"context"
	"crypto/rand"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/load"
	"github.com/atmostonce/coordinator/test/process"
)

// connections is how many connections the callers share, to each node.
const connections = 4

// callersMost is how many callers there are at most.
const callersMost = 256

// The parts of an identity but the key, and of every name in the other systems.
const (
	namespace = "default"
	principal = "token-7f3a"
	operation = "POST /v1/orders"
)

// response is what is committed: 100 bytes.
var response = strings.Repeat("response--", 10)

// takenKey is the key that duplicates ask for, and taken its name elsewhere.
const (
	takenKey = "taken"
	taken    = namespace + "/" + principal + "/" + operation + "/" + takenKey
)

// newName is a new name in another system, as long as an identity is here.
func newName() string { return namespace + "/" + principal + "/" + operation + "/" + rand.Text() }

// coordinator is one node or three of ours.
type coordinator struct {
	cluster *load.Cluster
	leaders []string       // by shard
	client  *client.Client // with sessions
}

// buildCoordinator builds the program with what its own module asks for. With profiled it
// writes a profile when it is told to; see testdata/profile.go.txt.
func buildCoordinator(t testing.TB, profiled bool) process.Programs {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	programs := process.Programs{Coordinator: filepath.Join(dir, "coordinator")}
	arguments := []string{"build", "-C", root, "-o", programs.Coordinator}
	if profiled {
		arguments = append(arguments, "-overlay", overlay(t, root))
	}
	build := exec.CommandContext(t.Context(), "go", append(arguments, "./cmd/coordinator")...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return programs
}

// shardsDefault is what a cluster gets that is told nothing.
const shardsDefault = 3

func startCoordinator(t testing.TB, programs process.Programs, size, shards int, more ...string) *coordinator {
	t.Helper()
	c := &coordinator{cluster: load.Start(t, programs, size, shards, more...)}
	shared, err := client.Dial(c.cluster.Endpoints())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shared.Close() })
	c.client = shared
	return c
}

// lookUp finds the leaders, as a client that has been running for a while knows them.
func (c *coordinator) lookUp(t testing.TB) {
	t.Helper()
	c.leaders = c.cluster.LeaderAddresses(t)
}

func (c *coordinator) pids() (pids []int) {
	for _, n := range c.cluster.Nodes {
		pids = append(pids, n.PID())
	}
	return pids
}

func identityOf(key string) *coordinatorv1.Identity {
	return &coordinatorv1.Identity{Namespace: namespace, Principal: principal, Operation: operation, Key: key}
}

// service is a connection to the leader of an identity's shard.
func (c *coordinator) service(id *coordinatorv1.Identity, caller int) coordinatorv1.CoordinatorServiceClient {
	return c.cluster.Service(c.leaders[c.cluster.ShardOf(id)], caller)
}

// reserve reserves a new key, by a call of its own.
func (c *coordinator) reserve(ctx context.Context, caller int) error {
	_, _, err := c.reserveNew(ctx, caller)
	return err
}

func (c *coordinator) reserveNew(ctx context.Context, caller int) (*coordinatorv1.Identity, string, error) {
	id := identityOf(rand.Text())
	answer, err := c.service(id, caller).Reserve(ctx, &coordinatorv1.ReserveRequest{
		Identity: id, AttemptId: load.AttemptID(),
		PendingTtl: durationpb.New(pendingWindow), Retention: durationpb.New(retentionWindow),
	})
	if err == nil && answer.GetGranted() == nil {
		err = errTaken
	}
	return id, answer.GetGranted().GetToken(), err
}

// pair reserves and commits, by two calls of their own.
func (c *coordinator) pair(ctx context.Context, caller int) error {
	id, token, err := c.reserveNew(ctx, caller)
	if err != nil {
		return err
	}
	_, err = c.service(id, caller).Commit(ctx, &coordinatorv1.CommitRequest{
		Identity: id, Token: token, Response: &coordinatorv1.Response{Code: 200, Body: []byte(response)},
	})
	return err
}

// streamed does a pair through the Go client, whose calls share a stream while many are
// under way.
func (c *coordinator) streamed(ctx context.Context, _ int) error {
	owned, err := c.client.Reserve(ctx, client.Identity{Namespace: namespace, Principal: principal, Operation: operation, Key: rand.Text()},
		client.WithPendingTTL(pendingWindow), client.WithRetention(retentionWindow))
	if err != nil {
		return err
	}
	return owned.Commit(ctx, client.Response{Code: 200, Body: []byte(response)})
}

// duplicate asks the client for a key that is committed. It goes to the leader.
func (c *coordinator) duplicate(ctx context.Context, _ int) error {
	_, err := c.client.Reserve(ctx, client.Identity{Namespace: namespace, Principal: principal, Operation: operation, Key: takenKey})
	var done *client.CommittedError
	switch {
	case err == nil:
		return errTwice
	case !errors.As(err, &done):
		return err
	case string(done.Response.Body) != response:
		return errLost
	}
	return nil
}

// duplicateSpread asks the nodes in turn, whoever leads, by a call of its own.
func (c *coordinator) duplicateSpread(ctx context.Context, caller int) error {
	node := c.cluster.Nodes[caller%len(c.cluster.Nodes)]
	answer, err := c.cluster.Service(node.Client, caller/len(c.cluster.Nodes)).Reserve(ctx, &coordinatorv1.ReserveRequest{
		Identity: identityOf(takenKey), AttemptId: load.AttemptID(),
	})
	switch {
	case err != nil:
		return err
	case answer.GetGranted() != nil:
		return errTwice
	case string(answer.GetCommitted().GetResponse().GetBody()) != response:
		return errLost
	}
	return nil
}

// takeKey commits the key that duplicates ask for.
func (c *coordinator) takeKey(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	owned, err := c.client.Reserve(ctx, client.Identity{Namespace: namespace, Principal: principal, Operation: operation, Key: takenKey})
	if err != nil {
		t.Fatal(err)
	}
	if err := owned.Commit(ctx, client.Response{Code: 200, Body: []byte(response)}); err != nil {
		t.Fatal(err)
	}
}

// logged is how many entries the logs of all shards have.
func (c *coordinator) logged(t testing.TB) (entries uint64) {
	t.Helper()
	for _, shard := range c.cluster.List(t) {
		entries += shard.GetLastLogIndex()
	}
	return entries
}
