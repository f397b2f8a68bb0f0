package compare

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3"

	"github.com/atmostonce/coordinator/test/process"
)

// etcd is three nodes of etcd, and four connections to their leader, which is what suits
// it best.
type etcd struct {
	nodes   []*process.Node
	clients []*clientv3.Client
	leases  []clientv3.LeaseID // shared ones
}

// leaseSeconds is longer than any run: no lease ends during one, which would cost.
const leaseSeconds = 24 * 60 * 60

// sharedLeases is how many leases stand for a TTL each, where keys share them.
const sharedLeases = 16

func startEtcd(t testing.TB, program string) *etcd {
	t.Helper()
	const size = 3
	e := &etcd{}
	var names, clients, peers, cluster []string
	for i := range size {
		names = append(names, fmt.Sprint("e", i+1))
		clients = append(clients, "http://"+process.FreeAddress(t))
		peers = append(peers, "http://"+process.FreeAddress(t))
		cluster = append(cluster, names[i]+"="+peers[i])
	}
	for i := range size {
		n := process.NewProgram(t, program,
			"--name", names[i], "--data-dir", filepath.Join(t.TempDir(), names[i]),
			"--listen-client-urls", clients[i], "--advertise-client-urls", clients[i],
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i],
			"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
			"--initial-cluster-token", "compare", "--log-level", "error")
		if err := n.Start(); err != nil {
			t.Fatal(err)
		}
		e.nodes = append(e.nodes, n)
	}
	leader := e.awaitLeader(t, clients)
	for range connections {
		e.clients = append(e.clients, e.dial(t, leader))
	}
	for range sharedLeases {
		lease, err := e.clients[0].Grant(t.Context(), leaseSeconds)
		if err != nil {
			t.Fatal(err)
		}
		e.leases = append(e.leases, lease.ID)
	}
	return e
}

func (e *etcd) dial(t testing.TB, endpoint string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// awaitLeader returns the endpoint of the leader, once it has written something.
func (e *etcd) awaitLeader(t testing.TB, endpoints []string) string {
	t.Helper()
	c := e.dial(t, endpoints[0])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		bounded, done := context.WithTimeout(ctx, 2*time.Second)
		_, err := c.Put(bounded, "awaited", "")
		for _, endpoint := range endpoints {
			if err != nil {
				break
			}
			var status *clientv3.StatusResponse
			if status, err = c.Status(bounded, endpoint); err == nil && status.Leader == status.Header.MemberId {
				done()
				return endpoint
			}
		}
		done()
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("etcd does not serve")
	return ""
}

func (e *etcd) pids() (pids []int) {
	for _, n := range e.nodes {
		pids = append(pids, n.PID())
	}
	return pids
}

var (
	errTaken = errors.New("a new key was not granted")
	errLost  = errors.New("what was granted could not be committed")
	errTwice = errors.New("a key was granted twice")
)

// leased does a pair with a lease of its own: grant the lease, put if absent, put if it is
// still ours.
func (e *etcd) leased(ctx context.Context, caller int) error {
	lease, err := e.clients[caller%len(e.clients)].Grant(ctx, leaseSeconds)
	if err != nil {
		return err
	}
	return e.pair(ctx, caller, lease.ID)
}

// shared does a pair with a lease that many others have too.
func (e *etcd) shared(ctx context.Context, caller int) error {
	return e.pair(ctx, caller, e.leases[caller%len(e.leases)])
}

func (e *etcd) pair(ctx context.Context, caller int, lease clientv3.LeaseID) error {
	c, name := e.clients[caller%len(e.clients)], newName()
	reserved, err := c.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(name), "=", 0)).
		Then(clientv3.OpPut(name, rand.Text(), clientv3.WithLease(lease))).Commit()
	if err != nil {
		return err
	}
	if !reserved.Succeeded {
		return errTaken
	}
	committed, err := c.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(name), "=", reserved.Header.Revision)).
		Then(clientv3.OpPut(name, response, clientv3.WithLease(lease))).Commit()
	if err != nil {
		return err
	}
	if !committed.Succeeded {
		return errLost
	}
	return nil
}

// putIfAbsent reserves only, without a lease.
func (e *etcd) putIfAbsent(ctx context.Context, caller int) error {
	name := newName()
	reserved, err := e.clients[caller%len(e.clients)].Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(name), "=", 0)).
		Then(clientv3.OpPut(name, rand.Text())).Commit()
	if err == nil && !reserved.Succeeded {
		err = errTaken
	}
	return err
}

// duplicate asks for a key that is taken, and gets what it holds.
func (e *etcd) duplicate(ctx context.Context, caller int) error {
	answer, err := e.clients[caller%len(e.clients)].Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(taken), "=", 0)).
		Then(clientv3.OpPut(taken, rand.Text())).Else(clientv3.OpGet(taken)).Commit()
	switch {
	case err != nil:
		return err
	case answer.Succeeded:
		return errTwice
	case string(answer.Responses[0].GetResponseRange().Kvs[0].Value) != response:
		return errLost
	}
	return nil
}

func (e *etcd) takeKey(t testing.TB) {
	t.Helper()
	if _, err := e.clients[0].Put(t.Context(), taken, response); err != nil {
		t.Fatal(err)
	}
}

// etcdVersion is what a program says of itself.
func etcdVersion(t testing.TB, program string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), program, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return "etcd " + strings.TrimPrefix(first, "etcd Version: ")
}
