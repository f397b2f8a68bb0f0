package disk

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/process"
)

const (
	smallDiskMiB  = 64
	largerDiskMiB = 256
	floorMiB      = 24
)

// mountSmallDisk makes a node's data directory a small file system in memory.
func mountSmallDisk(t *testing.T, dir string) {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o700))
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%dm", smallDiskMiB))
	if errors.Is(err, syscall.EPERM) {
		t.Skip("NOT TRIED, because only root may mount a small file system: what a disk that is really full does (TestFailingDisk has writes that are refused for want of space)")
	}
	must(t, err)
	t.Cleanup(func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
}

func resizeDisk(t *testing.T, dir string, mib int) {
	t.Helper()
	must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, fmt.Sprintf("size=%dm", mib)))
}

// inflate takes all space that a disk has left; removing the file gives it back.
func inflate(t *testing.T, dir string) (balloon string) {
	t.Helper()
	balloon = filepath.Join(dir, ".balloon")
	file, err := os.Create(balloon)
	must(t, err)
	defer file.Close()
	for chunk := make([]byte, 64<<10); ; {
		if n, err := file.Write(chunk); err != nil {
			if errors.Is(err, syscall.ENOSPC) && n == 0 && len(chunk) == pageBytes {
				return balloon
			}
			chunk = chunk[:pageBytes]
		}
	}
}

// incompressible is a response of a size.
func incompressible(size int) *coordinatorv1.Response {
	body := make([]byte, size)
	_, _ = rand.Read(body)
	return &coordinatorv1.Response{Code: 200, Body: body}
}

// TestFullDisk: a disk that runs full refuses new keys first, and everything else goes
// on. When really nothing can be written any more the node ends with one clear line, as
// does each that is started on it; with space again it has everything and takes new keys.
func TestFullDisk(t *testing.T) {
	t.Parallel() // it waits more than it works
	seed := newSeed(t)
	random := drawFrom(seed, 0)
	c := process.New(t, smallPrograms(t), 1, "--shards", "1", "--free-bytes-min", fmt.Sprintf("%dMiB", floorMiB))
	n := c.Nodes[0]
	mountSmallDisk(t, n.Dir)
	must(t, n.Start())
	must(t, n.Serving(time.Minute))
	b := &book{shards: 1}
	w := &workers{book: b, conns: (&recording{cluster: c}).conns()}
	service := coordinatorv1.NewCoordinatorServiceClient(n.Conn())

	type holder struct {
		*page
		now shown
	}
	hold := func(key string) (*holder, error) {
		h := &holder{page: &page{key: key}}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		sent := time.Now().UnixMicro()
		answer, err := service.Reserve(ctx, &coordinatorv1.ReserveRequest{
			Identity: identity(key), PendingTtl: durationpb.New(pendingTTL), Fingerprint: []byte(key),
		})
		if err != nil {
			return nil, err
		}
		granted := answer.GetGranted()
		h.now = shown{state: coordinatorv1.State_STATE_PENDING, attempt: 1, fence: granted.GetFence(), token: granted.GetToken()}
		h.page = b.open(key)
		h.promises = append(h.promises, promise{sent: sent, answered: time.Now().UnixMicro(), after: h.now})
		return h, nil
	}

	var held []*holder
	for i := range 40 {
		h, err := hold(fmt.Sprint("held-", i))
		must(t, err)
		held = append(held, h)
	}
	var refused error
	var filled int
	for ; refused == nil && filled < smallDiskMiB*10; filled++ {
		h, err := hold(fmt.Sprint("filling-", filled))
		if refused = err; err == nil {
			must(t, w.commit(h.page, &h.now, incompressible(200<<10)))
		}
	}
	t.Logf("%d keys with 200 KiB each, then: %v", filled-1, refused)
	if status.Code(refused) != codes.ResourceExhausted || reasonOf(refused) != "STORAGE_FULL" {
		t.Fatalf("a disk with less than %d MiB free still takes new keys: %v", floorMiB, refused)
	}
	// What others write keeps it so: the log gives space back where it is cut.
	must(t, os.WriteFile(filepath.Join(n.Dir, ".others"), incompressible(4<<20).GetBody(), 0o600))
	for i := range 10 {
		if _, err := hold(fmt.Sprint("refused-", i)); reasonOf(err) != "STORAGE_FULL" {
			t.Errorf("a new key on a full disk: %v", err)
		}
	}
	// Owners go on.
	for i, h := range held[:30] {
		switch i % 3 {
		case 0:
			must(t, w.commit(h.page, &h.now, incompressible(2000)))
		case 1:
			must(t, w.release(h.page, &h.now))
		default:
			must(t, w.extend(h.page, &h.now))
		}
	}
	shows, err := coordinatorv1.NewAdminServiceClient(n.Conn()).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
	must(t, err)
	t.Logf("the node says: %q", shows.GetProblems())
	if !strings.Contains(fmt.Sprint(shows.GetProblems()), "disk space") {
		t.Error("it does not say that disk space is short")
	}

	balloon := inflate(t, n.Dir)
	// An owner's commit may fail now, and only so: the process ends, and nobody was told
	// that it was carried out.
	last := held[30]
	last.add(shown{state: coordinatorv1.State_STATE_COMMITTED, attempt: 1, fence: last.now.fence, token: last.now.token})
	_, err = service.Commit(t.Context(), &coordinatorv1.CommitRequest{Identity: identity(last.key), Token: last.now.token, Response: incompressible(900 << 10)})
	code, waited := n.Wait(20 * time.Second)
	must(t, waited)
	t.Logf("the commit: %v; ended with %d: %s", err, code, lastLine(n))
	if err == nil {
		t.Error("a commit was acknowledged on a disk without space")
	}
	ends := func() {
		t.Helper()
		if line := lastLine(n); code != 1 || !strings.HasPrefix(line, "coordinator: ") || !strings.Contains(line, n.Dir) || !strings.Contains(line, "no space left on device") {
			t.Errorf("exit code %d and the last line %q, want 1 and one that says where there is no space left", code, line)
		}
	}
	ends()
	must(t, n.Start())
	code, waited = n.Wait(30 * time.Second)
	must(t, waited)
	t.Logf("started on the full disk, ended with %d: %s", code, lastLine(n))
	ends()

	must(t, os.Remove(balloon))
	must(t, n.Start())
	must(t, n.Serving(time.Minute))
	if _, err := hold("still-refused"); reasonOf(err) != "STORAGE_FULL" {
		t.Errorf("a new key on a disk that is nearly full: %v", err)
	}
	resizeDisk(t, n.Dir, largerDiskMiB)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		if _, err = hold("welcome"); err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("with space again a new key is refused: %v", err)
		}
	}
	must(t, b.check(n.Conn(), never64, random))
	if bytes.Contains([]byte(n.Output()), []byte("panic")) {
		t.Error("it has panicked")
	}
}

// TestFullDiskOfLeader: the disk under a leader is full all at once. It ends, the two
// others serve, and once there is space again it catches up.
func TestFullDiskOfLeader(t *testing.T) {
	t.Parallel() // it waits more than it works
	seed := newSeed(t)
	c := process.New(t, smallPrograms(t), 3, "--shards", "1", "--balance-every", "0s", "--free-bytes-min", "1MiB")
	for _, n := range c.Nodes {
		mountSmallDisk(t, n.Dir)
	}
	for _, n := range c.Nodes {
		must(t, n.Start())
	}
	must(t, c.Serving(time.Minute))
	b := &book{shards: 1}
	w := startWorkers(b, (&recording{cluster: c}).conns(), 4, seed)
	time.Sleep(time.Second)
	victim, err := c.LeaderOfMost(time.Minute)
	must(t, err)
	balloon := inflate(t, victim.Dir)
	code, err := victim.Wait(20 * time.Second)
	ended := time.Now()
	must(t, err)
	line := lastLine(victim)
	t.Logf("ended with %d: %s", code, line)
	if code != 1 || !strings.HasPrefix(line, "coordinator: ") || !strings.Contains(line, victim.Dir) {
		t.Errorf("ended with %d: %s", code, line)
	}
	served, err := servedSince(c, victim, ended)
	must(t, err)
	t.Logf("the two others serve %v after that", served.Round(time.Millisecond))
	must(t, os.Remove(balloon))
	must(t, victim.Start())
	must(t, caughtUp(c, time.Minute))
	must(t, w.stop())
	must(t, caughtUp(c, time.Minute))
	must(t, b.check(victim.Conn(), never64, drawFrom(seed, 1)))
}
