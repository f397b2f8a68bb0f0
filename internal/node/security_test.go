package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/certs"
	"github.com/atmostonce/coordinator/internal/certs/certstest"
	"github.com/atmostonce/coordinator/internal/peer"
)

// Files come together, and which port may be reached by other machines follows from them.
func TestWhatProtectsAPort(t *testing.T) {
	pair := certs.Files{Certificate: "c", Key: "k"}
	all := certs.Files{Certificate: "c", Key: "k", Authorities: "a"}
	far := func(c *Config) { c.Listen = "10.0.0.1:1" }
	farPeers := func(c *Config) { c.PeerListen = "10.0.0.1:1" }
	farLooks := func(c *Config) { c.HTTPListen, c.MetricsListen = "10.0.0.1:1", "10.0.0.1:2" }
	for name, test := range map[string]struct {
		client, peer certs.Files
		change       func(*Config)
		wrong        string // the setting; "": none
	}{
		"nothing":                            {},
		"a pair":                             {client: pair},
		"all":                                {client: all, peer: all, change: func(c *Config) { c.PeerListen = "127.0.0.1:1" }},
		"a peer's, without a peer port":      {peer: all, wrong: "peer-tls-cert"},
		"a certificate without its key":      {client: certs.Files{Certificate: "c"}, wrong: "tls-key"},
		"a key without its certificate":      {client: certs.Files{Key: "k"}, wrong: "tls-cert"},
		"authorities alone":                  {client: certs.Files{Authorities: "a"}, wrong: "tls-cert"},
		"authorities and a certificate":      {client: certs.Files{Certificate: "c", Authorities: "a"}, wrong: "tls-key"},
		"a peer's pair":                      {peer: pair, wrong: "peer-tls-ca"},
		"a peer's key":                       {peer: certs.Files{Key: "k"}, wrong: "peer-tls-cert"},
		"a peer without a key":               {peer: certs.Files{Certificate: "c", Authorities: "a"}, wrong: "peer-tls-key"},
		"far away, nothing":                  {change: far, wrong: "listen"},
		"far away, anybody may come":         {client: pair, change: far, wrong: "listen"},
		"far away, everybody is asked":       {client: all, change: far},
		"far peers, nothing":                 {client: all, change: farPeers, wrong: "peer-listen"},
		"far peers, everybody is asked":      {peer: all, change: farPeers},
		"far looks, nothing":                 {change: farLooks, wrong: "http-listen"},
		"far looks, encrypted":               {client: pair, change: farLooks},
		"far away, and that is accepted":     {change: func(c *Config) { far(c); farPeers(c); farLooks(c); c.Insecure = true }},
		"accepted, and the files do not fit": {client: certs.Files{Key: "k"}, change: func(c *Config) { c.Insecure = true }, wrong: "tls-cert"},
	} {
		cfg := Default()
		cfg.TLS, cfg.PeerTLS = test.client, test.peer
		if test.change != nil {
			test.change(&cfg)
		}
		var wrong *SettingError
		if err := cfg.Validate(); (err == nil) != (test.wrong == "") || err != nil && (!errors.As(err, &wrong) || wrong.Setting != test.wrong) {
			t.Errorf("%s: %v, want %q", name, err, test.wrong)
		}
	}
}

// A file that cannot be used is named with its setting, before anything else is touched.
func TestAFileThatCannotBeUsed(t *testing.T) {
	good := certstest.New(t, "ours").Write(t, t.TempDir())
	absent := filepath.Join(t.TempDir(), "absent.pem")
	for setting, change := range map[string]func(*Config){
		"tls-cert":      func(c *Config) { c.TLS.Certificate = absent },
		"tls-key":       func(c *Config) { c.TLS.Key = absent },
		"tls-client-ca": func(c *Config) { c.TLS.Authorities = absent },
		"peer-tls-cert": func(c *Config) { c.PeerTLS.Certificate = absent },
		"peer-tls-key":  func(c *Config) { c.PeerTLS.Key = absent },
		"peer-tls-ca":   func(c *Config) { c.PeerTLS.Authorities = absent },
	} {
		cfg := alone(t)
		cfg.TLS, cfg.PeerTLS, cfg.PeerListen = good, good, "127.0.0.1:0"
		change(&cfg)
		_, err := Start(t.Context(), cfg)
		var wrong *SettingError
		if !errors.As(err, &wrong) || wrong.Setting != setting || wrong.Problem != "names "+absent+", which cannot be read: no such file or directory" {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

// lines is a log that several write.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// secured starts nodes that show each other, and their clients, what their files hold.
func secured(t *testing.T, count int, change func(name string, c *Config)) []*Node {
	t.Helper()
	listeners := make(map[string]net.Listener)
	var peers []peer.Listed
	for i := range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[listener.Addr().String()] = listener
		peers = append(peers, peer.Listed{Name: fmt.Sprintf("n%d", i+1), Address: listener.Addr().String()})
	}
	nodes := make([]*Node, count)
	for i, listed := range peers {
		cfg := alone(t)
		cfg.NodeID, cfg.Peers, cfg.Shards = listed.Name, peers, 1
		cfg.ListenOn = func(network, address string) (net.Listener, error) {
			if listener := listeners[address]; listener != nil {
				return listener, nil
			}
			return net.Listen(network, address)
		}
		change(listed.Name, &cfg)
		started, err := Start(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := started.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
		nodes[i] = started
	}
	return nodes
}

// reserve asks a node for a new key, until there is an answer that says something of the caller.
func reserve(t *testing.T, n *Node, key string, with credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(n.Address().String(), grpc.WithTransportCredentials(with), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	request := &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Operation: "test", Key: key}}
	for {
		answer, err := coordinatorv1.NewCoordinatorServiceClient(conn).Reserve(ctx, request)
		if err == nil && answer.GetGranted() == nil {
			t.Errorf("%s: %v", key, answer)
		}
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "leader") && !strings.Contains(err.Error(), "not open") {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// Three nodes speak TLS with each other and with who comes, and with nobody else.
func TestASecuredCluster(t *testing.T) {
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	clients, peers, stranger := ours.Write(t, t.TempDir()), ours.Write(t, t.TempDir()), theirs.Write(t, t.TempDir())
	var log lines
	nodes := secured(t, 3, func(_ string, c *Config) {
		c.TLS, c.PeerTLS, c.Logger = clients, peers, slog.New(slog.NewTextHandler(&log, nil))
	})
	with := func(files certs.Files) *tls.Config {
		opened, err := certs.Open(files, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return opened.Client("127.0.0.1")
	}
	// Of three nodes two forward the call.
	for _, n := range nodes {
		if err := reserve(t, n, n.cfg.NodeID, credentials.NewTLS(with(clients))); err != nil {
			t.Errorf("%s: %v", n.cfg.NodeID, err)
		}
	}
	for name, refused := range map[string]credentials.TransportCredentials{
		"plain text":         insecure.NewCredentials(),
		"no certificate":     credentials.NewTLS(with(certs.Files{Authorities: clients.Authorities})),
		"of other authority": credentials.NewTLS(with(certs.Files{Certificate: stranger.Certificate, Key: stranger.Key, Authorities: clients.Authorities})),
	} {
		if err := reserve(t, nodes[0], name, refused); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", name, err)
		}
	}
	if told := log.String(); strings.Count(told, "refused a client's connection") != 1 {
		t.Errorf("refusals are told once in a while: %s", told)
	}
	// Whoever looks at how the node is shows nothing.
	looking := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: with(certs.Files{Authorities: clients.Authorities}),
	}}
	answer, err := looking.Get("https://" + nodes[0].HTTPAddress().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(answer.Body)
	if _ = answer.Body.Close(); err != nil || string(text) != "ok\n" {
		t.Errorf("livez: %q, %v", text, err)
	}
	// The peer port says nothing to plain text.
	plain, err := net.Dial("tcp", nodes[0].cfg.Peers[0].Address)
	if err != nil {
		t.Fatal(err)
	}
	header, err := (&peer.Header{Kind: peer.KindHello, Sender: nodes[1].port.Self(), Life: peer.NewLife(1)}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = plain.Write(header)
	_ = plain.SetReadDeadline(time.Now().Add(20 * time.Second))
	heard, err := io.ReadAll(plain)
	if bytes.Contains(heard, []byte("n1")) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the peer port said %q, %v", heard, err)
	}
	_ = plain.Close()
}

// A node that shows what nobody believes takes no part, and those that believe each other go on.
func TestANodeOfOtherAuthority(t *testing.T) {
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	good, stranger := ours.Write(t, t.TempDir()), theirs.Write(t, t.TempDir())
	nodes := secured(t, 3, func(name string, c *Config) {
		c.PeerTLS = good
		if name == "n3" {
			c.PeerTLS = stranger
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := nodes[0].port.Hello(ctx, nodes[2].cfg.Peers[2].Address, peer.HelloMessage{Self: peer.Member{Name: "n1"}})
	if err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("n1 heard of n3: %v", err)
	}
	_, err = nodes[2].port.Hello(ctx, nodes[0].cfg.Peers[0].Address, peer.HelloMessage{Self: peer.Member{Name: "n3"}})
	if err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("n3 heard of n1: %v", err)
	}
	select {
	case <-nodes[2].Ready():
		t.Error("n3 has opened its shards")
	default:
	}
}
