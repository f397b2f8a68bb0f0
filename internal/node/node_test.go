package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/shard"
)

// alone is a node by itself on free ports of this machine.
func alone(t *testing.T) Config {
	cfg := Default()
	cfg.DataDir = t.TempDir()
	cfg.Listen, cfg.HTTPListen = "127.0.0.1:0", "127.0.0.1:0"
	cfg.FreeBytesMin = 0
	return cfg
}

func get(t *testing.T, n *Node, path string) (int, string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + n.HTTPAddress().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

func TestLiveAndReady(t *testing.T) {
	cfg := alone(t)
	cfg.PeerListen = "127.0.0.1:0"
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if code, text := get(t, n, "/livez"); code != http.StatusOK || text != "ok\n" {
		t.Errorf("livez: %d %q", code, text)
	}
	<-n.Ready()
	for i := range n.shards.count {
		for {
			changed := n.shards.Replica(i).LeaderChanged()
			if n.shards.Replica(i).Leader().Known() {
				break
			}
			<-changed
		}
	}
	if code, text := get(t, n, "/readyz"); code != http.StatusOK || text != "ok\n" {
		t.Errorf("readyz: %d %q", code, text)
	}
	if code, _ := get(t, n, "/other"); code != http.StatusNotFound {
		t.Errorf("other: %d", code)
	}
	listsServices(t, n)
	if err := n.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if err := n.Stop(context.Background()); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if conn, err := net.Dial("tcp", n.Address().String()); err == nil {
		_ = conn.Close()
		t.Error("something still listens")
	}
	if err := n.Err(); err != nil {
		t.Errorf("a node that was stopped has failed: %v", err)
	}
}

// Reflection is on.
func listsServices(t *testing.T, n *Node) {
	t.Helper()
	conn, err := grpc.NewClient(n.Address().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{
		MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{},
	}); err != nil {
		t.Fatal(err)
	}
	answer, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range answer.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	text := strings.Join(names, " ")
	for _, want := range []string{"coordinator.v1.CoordinatorService", "coordinator.v1.AdminService", "grpc.health.v1.Health"} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not among %s", want, text)
		}
	}
	// The stream stays open: a stop must not wait for it.
}

// A start that fails takes nothing with it.
func TestFailedStarts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := alone(t)
	for want, change := range map[string]func(*Config){
		"listen: ":       func(c *Config) { c.Listen = taken.Addr().String() },
		"peer-listen: ":  func(c *Config) { c.PeerListen = taken.Addr().String() },
		"http-listen: ":  func(c *Config) { c.HTTPListen = taken.Addr().String() },
		"metrics-listen": func(c *Config) { c.MetricsListen = taken.Addr().String() },
		"belongs to nod": func(c *Config) { c.NodeID = "n2" },
	} {
		started, err := Start(t.Context(), cfg) // the directory is usable before and after
		if err != nil {
			t.Fatal(err)
		}
		<-started.Ready()
		if err := started.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		broken := cfg
		change(&broken)
		if _, err := Start(t.Context(), broken); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// A node that waits for the others stops at once.
func TestStopWhileWaiting(t *testing.T) {
	cfg := alone(t)
	cfg.PeerListen = "127.0.0.1:0"
	cfg.Peers = []peer.Listed{{Name: "n1", Address: "127.0.0.1:1"}, {Name: "n2", Address: "127.0.0.1:2"}}
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if code, text := get(t, n, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("readyz: %d %q", code, text)
	}
	if err := n.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestFailureIsTold(t *testing.T) {
	n, err := Start(t.Context(), alone(t))
	if err != nil {
		t.Fatal(err)
	}
	n.fail(errors.New("the disk is gone"))
	n.fail(errors.New("and more"))
	<-n.Done()
	if err := n.Err(); err == nil || err.Error() != "the disk is gone" {
		t.Errorf("got %v", err)
	}
	if err := n.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// A stop is bounded by its timeout, whatever hangs.
func TestStopThatHangs(t *testing.T) {
	for name, hang := range map[string]func(n *Node, until <-chan struct{}){
		"a server": func(n *Node, until <-chan struct{}) { n.serverWork.Go(func() { <-until }) },
		"the disk": func(n *Node, until <-chan struct{}) { n.work.Go(func() { <-until }) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := alone(t)
			cfg.StopTimeout = 500 * time.Millisecond
			n, err := Start(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			<-n.Ready()
			release := make(chan struct{})
			hang(n, release)
			err = n.Stop(context.Background())
			if err == nil || !strings.Contains(err.Error(), "did not stop within 500ms") || strings.Contains(err.Error(), "%!") {
				t.Errorf("got %v", err)
			}
			if _, err := membership.Acquire(t.Context(), cfg.DataDir); err == nil {
				t.Error("the directory is free, although something still uses it")
			}
			close(release)
			if router := n.Router(); name == "the disk" {
				if err := router.Close(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func TestHandover(t *testing.T) {
	status := func(number int, change func(*shard.ReplicaStatus)) shard.Status {
		s := shard.Status{Shard: number}
		for _, name := range []string{"n1", "n2", "n3"} {
			replica := shard.ReplicaStatus{NodeID: name, Voter: true, Self: name == "n1"}
			if change != nil && name != "n1" {
				change(&replica)
			}
			s.Replicas = append(s.Replicas, replica)
		}
		return s
	}
	all := func(change func(*shard.ReplicaStatus)) []shard.Status {
		var led []shard.Status
		for i := range 6 {
			led = append(led, status(i, change))
		}
		return led
	}
	for _, c := range []struct {
		name   string
		led    []shard.Status
		number int
		to     string
		short  string
	}{
		{"all of them", all(nil), 1, "n2", ""},
		{"one too many", []shard.Status{status(0, nil), status(3, nil), status(5, nil)}, 5, "n3", ""},
		{"its share", []shard.Status{status(1, nil), status(2, nil)}, 0, "", ""},
		{"the others do not answer", all(func(r *shard.ReplicaStatus) { r.LastContact = time.Minute }), 0, "", ""},
		{"the others have never answered", all(func(r *shard.ReplicaStatus) { r.LastContact = -1 }), 0, "", ""},
		{"the others are behind", all(func(r *shard.ReplicaStatus) { r.Behind = 5000 }), 0, "", ""},
		{"there are no other voters", all(func(r *shard.ReplicaStatus) { r.Voter = false }), 0, "", ""},
		{"only n3 keeps up", all(func(r *shard.ReplicaStatus) {
			if r.NodeID == "n2" {
				r.Behind = 5000
			}
		}), 2, "n3", ""},
		{"n2 is short of space", all(nil), 1, "n3", "n2"},
		{"this one is short of space, and leads no more than its share", []shard.Status{status(0, nil), status(3, nil)}, 0, "n2", "n1"},
		{"all are short of space", all(nil), 1, "n2", "n1 n2 n3"},
		{"all are, and this one leads its share", []shard.Status{status(1, nil), status(2, nil)}, 0, "", "n1 n2 n3"},
	} {
		short := make(map[string]bool)
		for _, name := range strings.Fields(c.short) {
			short[name] = true
		}
		if number, to := handover("n1", 6, c.led, short); number != c.number || to != c.to {
			t.Errorf("%s: shard %d to %q", c.name, number, to)
		}
	}
}

func TestAdvertised(t *testing.T) {
	other := func() string { return "host" }
	for _, c := range []struct{ set, listens, want string }{
		{"", "127.0.0.1:7420", "127.0.0.1:7420"},
		{"", "0.0.0.0:7420", "host:7420"},
		{"", "[::]:7420", "host:7420"},
		{"", "[::1]:7420", "[::1]:7420"},
		{"example.org:1", "0.0.0.0:7420", "example.org:1"},
	} {
		if got := advertised(c.set, pipeAddress(c.listens), other); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}

// Invariant 4.
func TestOnlyLoopbackIsSecure(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:1": true, "127.9.9.9:1": true, "[::1]:1": true, "localhost:1": true,
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "10.0.0.1:1": false, "example.org:1": false, "localhost.example.org:1": false,
	} {
		if got := loopback(address); got != want {
			t.Errorf("%s: %v", address, got)
		}
		cfg := Default()
		cfg.Listen = address
		var wrong *SettingError
		if err := cfg.Validate(); (err == nil) != want || err != nil && (!errors.As(err, &wrong) || wrong.Setting != "listen") {
			t.Errorf("%s: %v", address, err)
		}
		cfg.Insecure = true
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s, insecure: %v", address, err)
		}
	}
	// A peer port that is not named listens at the node's own address in the list.
	cfg := Default()
	cfg.Peers = []peer.Listed{{Name: "n1", Address: "10.0.0.1:7430"}}
	if err := cfg.Validate(); err == nil || !strings.Contains(fmt.Sprint(err), "peer-listen") {
		t.Errorf("got %v", err)
	}
}

// Addresses that stand for all of a machine's are for listening: who dials them comes to himself.
func TestAddressesThatNobodyCanDial(t *testing.T) {
	for address, dialed := range map[string]bool{
		":1": false, "0.0.0.0:1": false, "[::]:1": false, "[0:0::0]:1": false, "[::ffff:0.0.0.0]:1": false, "[::%lo]:1": false,
		"10.0.0.1:0": false, "10.0.0.1:1": true, "[::1]:1": true, "[fe80::1%lo]:1": true, "example.org:1": true,
	} {
		for setting, set := range map[string]func(*Config){
			"advertise":      func(c *Config) { c.Advertise = address },
			"peer-advertise": func(c *Config) { c.PeerAdvertise, c.PeerListen = address, "127.0.0.1:7430" },
			"peers":          func(c *Config) { c.Peers = []peer.Listed{{Name: "n1", Address: address}} },
		} {
			cfg := Default()
			cfg.Insecure = true
			set(&cfg)
			var wrong *SettingError
			if err := cfg.Validate(); (err == nil) != dialed || err != nil && (!errors.As(err, &wrong) || wrong.Setting != setting) {
				t.Errorf("%s %s: %v", setting, address, err)
			}
		}
		cfg := Default()
		cfg.Insecure, cfg.Listen = true, address
		if err := cfg.Validate(); err != nil {
			t.Errorf("listen %s: %v", address, err)
		}
	}
}

func TestSpaceIsSaid(t *testing.T) {
	for _, c := range []struct {
		free, floor int64
		want        string
	}{
		{-1, 20 << 20, ""}, // not looked at yet
		{0, 20 << 20, "0 bytes free, the floor is 20 MiB"},
		{15 << 20, 20 << 20, "15 MiB free, the floor is 20 MiB"},
		{20<<20 - 1, 20 << 20, "19.9 MiB free, the floor is 20 MiB"},
		{1000, 4096, "1000 bytes free, the floor is 4 KiB"},
		{1 << 30, 3 << 29, "1 GiB free, the floor is 1.5 GiB"},
	} {
		n := &Node{cfg: Config{FreeBytesMin: c.floor}}
		n.freeBytes.Store(c.free)
		if got := n.space(); got != c.want {
			t.Errorf("%d of %d: %q, want %q", c.free, c.floor, got, c.want)
		}
	}
}
