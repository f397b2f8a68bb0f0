package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/certs"
	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/peer"
	"github.com/atmostonce/coordinator/internal/raftfsm"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// ShardsDefault is the number of shards of a cluster that is created without naming
// one. A multiple of three spreads the leaders of three nodes evenly; each further
// shard splits the batches.
const ShardsDefault = 3

// Config is what a node is started with. Start from [Default].
type Config struct {
	// DataDir holds everything the node keeps. It is made if need be. Required.
	DataDir string
	// NodeID is the node's name in its cluster: 1 to 64 letters, digits, '.', '_' and
	// '-'. Required.
	NodeID string
	// Listen is the host:port of the gRPC services. Port 0 picks a free one. Required.
	Listen string
	// PeerListen is the host:port for the other nodes. Empty: the node's own address in
	// Peers; without Peers there is then no peer port.
	PeerListen string
	// Peers lists all nodes of the cluster, this one included, in the same order on
	// every node: the first begins the cluster. Empty: this node is one by itself.
	Peers []peer.Listed
	// Advertise is the host:port that clients are told to dial. Empty: Listen; where that is
	// all addresses, with the host that others dial its peer port at, or else the machine's name.
	Advertise string
	// PeerAdvertise is the host:port that other nodes dial. Empty: the node's own
	// address in Peers, otherwise PeerListen.
	PeerAdvertise string
	// Shards is how many shards a cluster has, 1 to 1024, fixed when it is created.
	// 0: what the data directory has, and ShardsDefault for a new one.
	Shards int
	// HTTPListen is the host:port of /livez and /readyz. Empty: there are none.
	HTTPListen string
	// MetricsListen is the host:port of /metrics. Empty: there are none.
	MetricsListen string
	// TLS is what the ports for clients show, /livez, /readyz and /metrics included, and with
	// whose signature a client of the gRPC services has to come. Without files they speak plain
	// text; without Authorities every client is taken.
	TLS certs.Files
	// PeerTLS is what nodes show each other: all three files, or none for plain text.
	PeerTLS certs.Files
	// Insecure permits listening on addresses that are not loopback without the above.
	Insecure bool

	// StopTimeout bounds a graceful stop, 100 ms to 10 min.
	StopTimeout time.Duration
	// JoinWait is how long a node that the existing cluster does not know waits to be
	// added before it gives up, 0 to 24 h.
	JoinWait time.Duration
	// BalanceEvery is the time between two looks at whether this node leads more than its
	// share of the shards; each look hands over one at most. 0: never.
	BalanceEvery time.Duration
	// FreeBytesMin is the free space below which no new keys are taken, and no state is
	// copied to be sent or received, in bytes. 0: no floor.
	FreeBytesMin int64
	// ConnectionsMax bounds the connections that clients have at a time, 1 or more.
	ConnectionsMax int
	// StreamsMax bounds the calls that run at a time on one connection, 1 or more.
	StreamsMax uint32

	// Timing is how often the replicas of a shard talk, and how long they wait.
	Timing raftfsm.Timing
	// Actor holds the bounds of a shard. Group, Store and Logger are filled in.
	Actor actor.Config
	// Calls holds defaults and limits of calls.
	Calls rpc.Settings

	// Version of the program, such as "v1.2.0".
	Version string
	// Logger is told what happens. Nil: nothing is logged.
	Logger *slog.Logger

	// Seams: nil means the operating system's.

	// ListenOn opens a listener on a host:port.
	ListenOn func(network, address string) (net.Listener, error)
	// Dial connects to the peer port of another node.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// FreeBytes returns the free space where a directory lies, in bytes.
	FreeBytes func(dir string) (int64, error)
	// FilesMax returns how many files the process may have open.
	FilesMax func() (int64, error)
}

// Default returns the settings of a node without flags: a cluster of its own on
// 127.0.0.1:7420, its data in ./coordinator-data.
func Default() Config {
	return Config{
		DataDir:        "coordinator-data",
		NodeID:         "n1",
		Listen:         "127.0.0.1:7420",
		StopTimeout:    10 * time.Second,
		JoinWait:       30 * time.Second,
		BalanceEvery:   10 * time.Second,
		FreeBytesMin:   256 << 20,
		ConnectionsMax: 4096,
		StreamsMax:     4096,
		Timing:         raftfsm.DefaultTiming(),
		Actor:          actor.Default(),
		Calls:          rpc.Default(),
	}
}

// SettingError reports a setting that makes no sense.
type SettingError struct {
	Setting string // as the command line calls it, without dashes
	Problem string
}

// Error names the setting first.
func (e *SettingError) Error() string { return e.Setting + ": " + e.Problem }

func wrong(setting, format string, arguments ...any) error {
	return &SettingError{Setting: setting, Problem: fmt.Sprintf(format, arguments...)}
}

// Validate returns a [SettingError] for the first setting that makes no sense.
func (c *Config) Validate() error {
	if c.DataDir == "" {
		return wrong("data-dir", "must not be empty")
	}
	if err := peer.CheckNodeName(c.NodeID); err != nil {
		return wrong("node-id", "is not valid: %v", err)
	}
	if err := c.validatePeers(); err != nil {
		return err
	}
	if err := c.validateTLS(); err != nil {
		return err
	}
	if err := c.validateAddresses(); err != nil {
		return err
	}
	if c.Shards < 0 || c.Shards > membership.ShardsMax {
		return wrong("shards", "is %d, it must be from 1 to %d", c.Shards, membership.ShardsMax)
	}
	switch {
	case c.StopTimeout < 100*time.Millisecond || c.StopTimeout > 10*time.Minute:
		return wrong("stop-timeout", "is %v, it must be from 100ms to 10m", c.StopTimeout)
	case c.JoinWait < 0 || c.JoinWait > 24*time.Hour:
		return wrong("join-wait", "is %v, it must be from 0 to 24h", c.JoinWait)
	case c.BalanceEvery != 0 && c.BalanceEvery < time.Second:
		return wrong("balance-every", "is %v, it must be 0 or at least 1s", c.BalanceEvery)
	case c.FreeBytesMin < 0:
		return wrong("free-bytes-min", "is %d, it must not be negative", c.FreeBytesMin)
	case c.ConnectionsMax < 1:
		return wrong("connections-max", "is %d, it must be at least 1", c.ConnectionsMax)
	case c.StreamsMax < 1:
		return wrong("streams-max", "is %d, it must be at least 1", c.StreamsMax)
	}
	if err := c.validateTimes(); err != nil {
		return err
	}
	if err := c.Timing.Validate(); err != nil {
		return wrong("raft timing", "%v", err)
	}
	if err := c.Calls.Validate(); err != nil {
		return wrong("limits of calls", "%v", err)
	}
	return nil
}

// validateTimes checks the times that depend on each other.
func (c *Config) validateTimes() error {
	switch t := c.Timing.WithDefaults(); {
	case t.Election < t.Heartbeat:
		return wrong("raft-election", "is %v, it must be at least raft-heartbeat, which is %v", t.Election, t.Heartbeat)
	case t.Lease > t.Heartbeat:
		return wrong("raft-lease", "is %v, it must be at most raft-heartbeat, which is %v", t.Lease, t.Heartbeat)
	case t.Call < t.Heartbeat:
		return wrong("raft-call", "is %v, it must be at least raft-heartbeat, which is %v", t.Call, t.Heartbeat)
	case c.Calls.ExtendSpan < c.Calls.PendingTTLDefault:
		return wrong("extend-span", "is %v, it must be at least pending-ttl-default, which is %v", c.Calls.ExtendSpan, c.Calls.PendingTTLDefault)
	}
	return nil
}

func (c *Config) validatePeers() error {
	if len(c.Peers) == 0 {
		return nil
	}
	if len(c.Peers) > peer.MembersMax {
		return wrong("peers", "lists %d nodes, at most %d are possible", len(c.Peers), peer.MembersMax)
	}
	names, addresses := make(map[string]bool), make(map[string]bool)
	for _, p := range c.Peers {
		if err := peer.CheckNodeName(p.Name); err != nil {
			return wrong("peers", "is not valid: %v", err)
		}
		if err := checkAddress(p.Address, false); err != nil {
			return wrong("peers", "lists %s with an address that %v", p.Name, err)
		}
		if names[p.Name] {
			return wrong("peers", "lists %s twice", p.Name)
		}
		if addresses[p.Address] {
			return wrong("peers", "lists the address %s twice", p.Address)
		}
		names[p.Name], addresses[p.Address] = true, true
	}
	if !names[c.NodeID] {
		return wrong("peers", "does not list this node, %s", c.NodeID)
	}
	return nil
}

func (c *Config) validateAddresses() error {
	for _, listen := range []struct{ setting, address string }{
		{"listen", c.Listen}, {"peer-listen", c.peerListen()}, {"http-listen", c.HTTPListen},
		{"metrics-listen", c.MetricsListen},
	} {
		if listen.address == "" && listen.setting != "listen" {
			continue
		}
		if err := checkAddress(listen.address, true); err != nil {
			return wrong(listen.setting, "%v", err)
		}
		if enough, needs := c.protected(listen.setting); !enough && !c.Insecure && !loopback(listen.address) {
			return wrong(listen.setting, "%s can be reached from other machines, and has no protection: give it %s, "+
				"listen on a loopback address such as 127.0.0.1, or accept that with --insecure", listen.address, needs)
		}
	}
	for _, dialed := range []struct{ setting, address string }{
		{"advertise", c.Advertise}, {"peer-advertise", c.PeerAdvertise},
	} {
		if dialed.address == "" {
			continue
		}
		if err := checkAddress(dialed.address, false); err != nil {
			return wrong(dialed.setting, "%v", err)
		}
	}
	if c.PeerAdvertise != "" && c.peerListen() == "" {
		return wrong("peer-advertise", "is %s, and there is no peer port: it needs --peers or --peer-listen", c.PeerAdvertise)
	}
	if c.PeerTLS.Given() && c.peerListen() == "" {
		return wrong(peerFiles[certs.Certificate], "is given, and there is no peer port: it needs --peers or --peer-listen")
	}
	return nil
}

// peerListen is where the peer port listens; "" for nowhere.
func (c *Config) peerListen() string {
	if c.PeerListen != "" {
		return c.PeerListen
	}
	return c.listed()
}

// listed is the node's own address in the list of peers; "" without one.
func (c *Config) listed() string {
	if i := slices.IndexFunc(c.Peers, func(p peer.Listed) bool { return p.Name == c.NodeID }); i >= 0 {
		return c.Peers[i].Address
	}
	return ""
}

// checkAddress reports what is wrong with a host:port. Only a listener may leave out the
// host, or name port 0.
func checkAddress(address string, listens bool) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		var wrong *net.AddrError
		if errors.As(err, &wrong) {
			return fmt.Errorf("is %q, which is not host:port (%s)", address, wrong.Err)
		}
		return fmt.Errorf("is %q, which is not host:port", address)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return fmt.Errorf("is %q, whose port is not a number up to 65535", address)
	}
	switch {
	case listens:
	case host == "" || number == 0:
		return fmt.Errorf("is %q, which nobody can dial: it must have a host and a port", address)
	case everyAddress(host):
		return fmt.Errorf("is %q, which nobody can dial: its host stands for all addresses of a machine", address)
	}
	if len(host) > 255 {
		return fmt.Errorf("has a host of %d bytes, at most 255 are possible", len(host))
	}
	if strings.ContainsFunc(host, notInHost) {
		return fmt.Errorf("is %q, whose host is neither a name nor an IP address", address)
	}
	return nil
}

// everyAddress reports whether a host stands for all addresses of a machine: it can be listened
// on, and whoever dials it comes to himself.
func everyAddress(host string) bool {
	if host == "" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.WithZone("").Unmap().IsUnspecified()
}

// notInHost reports whether a character is in no name of a host and in no IP address.
func notInHost(r rune) bool {
	return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\?#@"'<>,;=`+"`", r)
}

// loopback reports whether only this machine can reach what listens there.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// advertised returns what others should dial to reach a listener: what was set, or
// where it listens, with a host that can be dialed.
func advertised(set string, listener net.Addr, otherHost func() string) string {
	if set != "" {
		return set
	}
	host, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return listener.String()
	}
	if everyAddress(host) {
		host = otherHost()
	}
	return net.JoinHostPort(host, port)
}
