package main

import (
	"log/slog"
	"math"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/membership"
	"github.com/atmostonce/coordinator/internal/node"
)

// options is everything that can be set.
type options struct {
	node      node.Config
	logLevel  slog.Level
	logFormat string

	from map[string]string // setting → where its value is from, for messages
}

// The log formats.
const (
	formatAuto = "auto"
	formatText = "text"
	formatJSON = "json"
)

// configSetting names the YAML file. It is a flag and an environment variable only.
const configSetting = "config"

func defaults() *options {
	return &options{node: node.Default(), logLevel: slog.LevelInfo, logFormat: formatAuto, from: make(map[string]string)}
}

// setting is one row of the table of settings.
type setting struct {
	name  string // of the flag and the YAML key
	usage string // what it decides, in one or two sentences
	value value  // bound to the options it was made for
}

// environment returns the name of the environment variable.
func (s setting) environment() string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// section is a part of the table under one heading.
type section struct {
	title    string
	settings []setting
}

// table is the one list of settings: flags, environment variables, YAML keys, --help and
// docs/settings.md come from it.
func table(o *options) []section {
	c := &o.node
	const day = 24 * time.Hour
	return []section{
		{"The node", []setting{
			{"data-dir", "Directory that holds everything the node keeps. It is made if need be; one process uses it at a time.", text{&c.DataDir}},
			{"node-id", "Name of this node in its cluster: letters, digits, '.', '_' and '-'.", text{&c.NodeID}},
			{"listen", "host:port of the gRPC services.", text{&c.Listen}},
			{"advertise", "host:port that clients are told to dial. It must lead to this node. Default: where it listens; where that is all addresses (0.0.0.0, ::), the host that other nodes dial, or without one this machine's name.", text{&c.Advertise}},
			{"http-listen", "host:port of /livez and /readyz over HTTP. Default: none.", text{&c.HTTPListen}},
			{"metrics-listen", "host:port of /metrics over HTTP, for Prometheus (docs/metrics.md). Default: none.", text{&c.MetricsListen}},
			{"tls-cert", "PEM file with the certificate that clients are shown, and those between it and its authority behind it. /livez, /readyz and /metrics have it, too. Looked at every 10s, with what comes with it. Default: plain text.", file{&c.TLS.Certificate}},
			{"tls-key", "PEM file with the key of --tls-cert.", file{&c.TLS.Key}},
			{"tls-client-ca", "PEM file with the authorities of which one has signed what a client of the gRPC services has to show. Default: every client is taken.", file{&c.TLS.Authorities}},
			{"insecure", "Listen on addresses that other machines can reach without what protects them: --tls-cert and --tls-client-ca, and --peer-tls-cert for other nodes.", onOff{&c.Insecure}},
			{"log-level", "Least level that is logged: debug, info, warn or error.", level{&o.logLevel}},
			{"log-format", "text, json, or auto: text on a terminal, otherwise JSON.", choice{&o.logFormat, []string{formatAuto, formatText, formatJSON}}},
		}},
		{"The cluster", []setting{
			{"peers", "Every node of the cluster with its peer address, as n1=host:port,n2=host:port,…, this node included, in the same order on every node. The first begins the cluster. Default: this node is a cluster by itself.", peers{&c.Peers}},
			{"peer-listen", "host:port for the other nodes. Default: this node's address in --peers; without --peers there is no peer port.", text{&c.PeerListen}},
			{"peer-advertise", "host:port that the other nodes dial. Default: this node's address in --peers, otherwise where it listens; where that is all addresses, this machine's name.", text{&c.PeerAdvertise}},
			{"peer-tls-cert", "PEM file with the certificate that this node shows the others. It is for the host that they dial, and for both ends of a connection. Default: plain text.", file{&c.PeerTLS.Certificate}},
			{"peer-tls-key", "PEM file with the key of --peer-tls-cert.", file{&c.PeerTLS.Key}},
			{"peer-tls-ca", "PEM file with the authorities of which one has signed what the other nodes show. Whoever has such a certificate is taken for a node.", file{&c.PeerTLS.Authorities}},
			{"shards", "Number of shards, fixed when the cluster is created. Default: what the data directory has, and 3 for a new one.", number(&c.Shards, 1, membership.ShardsMax)},
			{"join-wait", "How long a node that the existing cluster does not know waits to be added before it ends.", duration{&c.JoinWait, 0, day}},
			{"balance-every", "Time between two looks at whether this node leads more than its share of the shards; each hands over one at most. 0: never.", duration{&c.BalanceEvery, 0, day}},
			{"stop-timeout", "How long a graceful stop may take.", duration{&c.StopTimeout, 100 * time.Millisecond, 10 * time.Minute}},
		}},
		{"Defaults of calls", []setting{
			{"pending-ttl-default", "Pending window of a Reserve that names none.", duration{&c.Calls.PendingTTLDefault, admission.PendingTTLMin, admission.PendingTTLMax}},
			{"retention-default", "Retention of a Reserve that names none.", duration{&c.Calls.RetentionDefault, admission.RetentionMin, admission.RetentionMax}},
			{"extend-span", "How long after its grant an attempt's deadline may be moved to.", duration{&c.Calls.ExtendSpan, admission.PendingTTLMin, 365 * day}},
			{"wanted-for-default", "How long a call without a deadline is worked on, beyond the time that it asks to wait.", duration{&c.Calls.WantedForDefault, 100 * time.Millisecond, 10 * time.Minute}},
			{"leader-wait", "How long a call that comes while its shard has no leader waits for one before it is answered NO_LEADER.", duration{&c.Calls.LeaderWait, 0, time.Minute}},
			{"status-wait", "How long a listing of the shards waits for other nodes before it shows what this one knows.", duration{&c.Calls.StatusWait, time.Millisecond, time.Minute}},
		}},
		{"Limits", []setting{
			{"response-bytes-max", "Largest stored response: headers, content type and body together.", size(&c.Calls.ResponseBytesMax, 1, admission.ResponseBytesMax)},
			{"compress-from", "Size from which a response is stored compressed, if that makes it smaller.", size(&c.Calls.CompressFrom, 0, math.MaxInt32)},
			{"calls-max", "Calls that are under way at a time, from the port for clients and from other nodes each; more are OVERLOADED. A session is one, whatever it carries.", number(&c.Calls.CallsMax, 1, math.MaxInt32)},
			{"unsent-bytes-max", "Bytes of large answers that clients have yet to take, of the whole node; more are OVERLOADED. One connection may have a half.", size(&c.Calls.UnsentBytesMax, 1<<20, 1<<40)},
			{"session-bytes-max", "Bytes that sessions take, of the whole node: a quarter for those that are open, 416 KiB each (157 by default), more are OVERLOADED; a quarter for their messages while calls of them wait, a session with more ends OVERLOADED; a half for calls under way, 26 KiB each beside twice their bytes, more wait.", size(&c.Calls.SessionBytesMax, 16<<20, 1<<40)},
			{"namespace-records-max", "Records of one namespace. 0: no limit. Each shard takes its part of it, rounded up: keys that spread unevenly are refused before so many are there, and where it does not divide evenly a few more may be taken.", number(&c.Calls.NamespaceRecordsMax, 0, math.MaxInt64)},
			{"free-bytes-min", "Free disk space below which no new keys are taken, and no copy of a state is made. 0: no floor.", size(&c.FreeBytesMin, 0, math.MaxInt64)},
			{"connections-max", "Connections that clients may have at a time; more are closed at once. Fewer where the process may not open as many files (`ulimit -n`), which the log says.", number(&c.ConnectionsMax, 1, math.MaxInt32)},
			{"streams-max", "Calls that run at a time on one connection; more wait in the client.", number(&c.StreamsMax, 1, math.MaxInt32)},
			{"mailbox-commands-max", "Calls of a shard that wait to be decided; more are OVERLOADED, and a Reserve is when seven eighths are taken, so that finished work can be recorded all the same.", number(&c.Actor.MailboxCommandsMax, 1, 1<<20)},
			{"mailbox-bytes-max", "Bytes of their commands; the same holds. One that is alone may be larger.", size(&c.Actor.MailboxBytesMax, 1<<20, 1<<40)},
			{"waiters-max", "Calls of a shard that wait for a record to leave PENDING; more are OVERLOADED.", number(&c.Actor.WaitersMax, 1, 1<<20)},
			{"waiters-per-key-max", "Such calls for one key.", number(&c.Actor.WaitersPerKeyMax, 1, 1<<20)},
			{"entry-commands-max", "Commands in one log entry.", number(&c.Actor.EntryCommandsMax, 1, 1<<16)},
			{"entry-bytes-max", "Bytes of one log entry, unless it is a single command.", size(&c.Actor.EntryBytesMax, 1<<10, 16<<20)},
			{"proposals-max", "Log entries of a shard under way at a time.", number(&c.Actor.ProposalsMax, 1, 64)},
			{"linger-max", "How long a log entry waits for the end of the one before it, so that it can hold what comes meanwhile. A call that comes alone does not wait.", duration{&c.Actor.LingerMax, 0, time.Second}},
			{"answer-bytes-max", "Bytes of stored responses that a shard holds for answers not given yet.", size(&c.Actor.AnswerBytesMax, 2<<20, 1<<40)},
			{"gathered-bytes-max", "Bytes that a shard may have yet to write to its state file before calls are OVERLOADED.", size(&c.Actor.GatheredBytesMax, 1<<20, 64<<20)},
		}},
		{"Raft", []setting{
			{"raft-heartbeat", "How long a follower waits for its leader, up to twice that by chance. The same on every node.", duration{&c.Timing.Heartbeat, 50 * time.Millisecond, time.Minute}},
			{"raft-election", "How long a candidate waits for votes. At least raft-heartbeat.", duration{&c.Timing.Election, 50 * time.Millisecond, time.Minute}},
			{"raft-lease", "How long a leader goes on without hearing from a majority. At most raft-heartbeat.", duration{&c.Timing.Lease, 25 * time.Millisecond, time.Minute}},
			{"raft-commit", "Longest time without a message to a follower.", duration{&c.Timing.Commit, time.Millisecond, time.Minute}},
			{"raft-call", "How long one message to a peer may take. At least raft-heartbeat.", duration{&c.Timing.Call, 50 * time.Millisecond, 10 * time.Minute}},
		}},
	}
}
