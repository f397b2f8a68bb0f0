package metrics

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/atmostonce/coordinator/internal/store"
)

// described are all metrics but those of the Go runtime and the process.
type described struct {
	buildInfo, nodeInfo, ready, shards  *prometheus.Desc
	diskFree, diskFreeMin, storageFull  *prometheus.Desc
	certificateEnds                     *prometheus.Desc
	up, hasLeader, isLeader, term       *prometheus.Desc
	leaderChanges                       *prometheus.Desc
	applied, commit, last               *prometheus.Desc
	behind, silent                      *prometheus.Desc
	records, namespaces                 *prometheus.Desc
	overdue, overdueFor, reclaimed      *prometheus.Desc
	calls, callSeconds, sessions        *prometheus.Desc
	underWay, connections               *prometheus.Desc
	connectionsMax                      *prometheus.Desc
	connectionsRefused                  *prometheus.Desc
	mailboxCalls, mailboxCallsMax       *prometheus.Desc
	mailboxBytes, mailboxBytesMax       *prometheus.Desc
	waiters, waitersMax, overloaded     *prometheus.Desc
	entries, entriesFailed, commands    *prometheus.Desc
	logEntries, logBytes, logAppend     *prometheus.Desc
	stateBytes, indexBytes              *prometheus.Desc
	unsavedBytes, unsavedMax, flushTook *prometheus.Desc
}

// describe lists every metric once, with what it means.
func describe() (d described, c *catalogue) {
	c = &catalogue{}
	const shard = "shard"

	c.section = "The node"
	d.buildInfo = c.gauge("build_info", "Always 1. The labels say which build this is.", "version", "go_version")
	d.nodeInfo = c.gauge("node_info", "Always 1. The labels say which node of which cluster this is; no cluster while it belongs to none yet.", "node", "cluster")
	d.ready = c.gauge("ready", "1 where /readyz would say ok: the shards are open and each has a leader that this node knows.")
	d.shards = c.gauge("shards", "Shards of the cluster.")
	d.diskFree = c.gauge("disk_free_bytes", "Free space where the data directory lies, as it was looked at last.")
	d.diskFreeMin = c.gauge("disk_free_bytes_min", "Free space below which no new keys are taken (--free-bytes-min).")
	d.storageFull = c.gauge("storage_full", "1 while new keys are refused for want of disk space.")

	d.certificateEnds = c.gauge("certificate_expiry_timestamp_seconds", "When the certificate that a port shows is over, in seconds since 1970: of client, or of peer. Nothing for one that speaks plain text.", "port")

	c.section = "Calls"
	d.calls = c.counter("calls_total",
		"Calls that have ended, those of sessions included. outcome is granted, committed, pending or in_doubt for a Reserve, done for any other call, or the reason of the error table; OTHER is a failure without one. port is client, or peer for calls that another node has forwarded.",
		"port", "method", "outcome")
	d.callSeconds = c.histogram("call_seconds",
		"Time from request to answer. Reserves that ask to wait are left out: they take as long as they were told to.", "port", "method")
	d.sessions = c.gauge("sessions", "Sessions that are open.", "port")
	d.underWay = c.gauge("calls_under_way", "Calls that have begun and not ended, a session counted as one. More than --calls-max are OVERLOADED.", "port")
	d.connections = c.gauge("connections", "Connections of clients that are open.", "port")
	d.connectionsMax = c.gauge("connections_max", "How many may be (--connections-max, or what the limit on open files leaves).", "port")
	d.connectionsRefused = c.counter("connections_refused_total", "Connections that were closed at once, since as many were open as may be.", "port")

	c.section = "Records"
	d.records = c.gauge("records",
		"Records by state: pending, lapsed, in_doubt, committed, released, and tombstone for those that only remember attempts. An overdue record counts as what it was until it is reclaimed. Every replica has all of its shard's.",
		shard, "state")
	d.namespaces = c.gauge("namespaces", "Namespaces with at least one record.", shard)
	d.overdue = c.gauge("alarms_overdue",
		fmt.Sprintf("Records that are due by the shard's clock and not reclaimed yet, counted up to %d.", store.OverdueMax), shard)
	d.overdueFor = c.gauge("alarms_overdue_seconds", "How long the first of them has been due; 0 where none is.", shard)
	d.reclaimed = c.counter("records_reclaimed_total", "Due records that were reclaimed. Every replica counts them.", shard)

	c.section = "Shards and their leaders"
	d.up = c.gauge("shard_up", "1 where this node's replica is open and could be read in time; otherwise nothing else is shown of the shard.", shard)
	d.hasLeader = c.gauge("shard_has_leader", "1 where this node knows a leader.", shard)
	d.isLeader = c.gauge("shard_is_leader", "1 where this node takes itself for the leader.", shard)
	d.term = c.gauge("shard_term", "Raft term.", shard)
	d.leaderChanges = c.counter("shard_leader_changes_total", "Leaders that this replica has heard of.", shard)
	d.applied = c.gauge("shard_applied_index", "Last log entry that the state has applied here.", shard)
	d.commit = c.gauge("shard_commit_index", "Last log entry that is known to be committed.", shard)
	d.last = c.gauge("shard_last_index", "Last entry of the log here.", shard)
	d.behind = c.gauge("follower_behind_entries", "Log entries that a follower has not acknowledged. The leader shows it.", shard, "node")
	d.silent = c.gauge("follower_silent_seconds", "Time since a follower has answered; +Inf for never. The leader shows it.", shard, "node")

	c.section = "Queues"
	d.mailboxCalls = c.gauge("mailbox_calls", "Calls that wait to be decided.", shard)
	d.mailboxCallsMax = c.gauge("mailbox_calls_max", "The most that may wait in one shard (--mailbox-commands-max). Reserves may take seven eighths.")
	d.mailboxBytes = c.gauge("mailbox_bytes", "Bytes of their commands.", shard)
	d.mailboxBytesMax = c.gauge("mailbox_bytes_max", "The most in one shard (--mailbox-bytes-max).")
	d.waiters = c.gauge("waiters", "Reserves that wait for another attempt to end.", shard)
	d.waitersMax = c.gauge("waiters_max", "The most in one shard (--waiters-max).")
	d.overloaded = c.counter("overloaded_total",
		"Calls that the shard refused as OVERLOADED. cause is what was full: mailbox, waiters (of the shard), key_waiters (of one key), state or log (more to write than the disk takes), or answers (more bytes than clients have taken).",
		shard, "cause")

	c.section = "Log and state"
	d.entries = c.counter("entries_proposed_total", "Log entries that this node has proposed as the leader, those without a command included.", shard)
	d.commands = c.counter("commands_proposed_total", "Commands in them.", shard)
	d.entriesFailed = c.counter("entries_failed_total", "Entries that came to nothing, or of which that is not known.", shard)
	d.logEntries = c.gauge("log_entries", "Entries that the log holds.", shard)
	d.logBytes = c.gauge("log_bytes", "Bytes of the log's files, which are allocated by 8 MiB.", shard)
	d.logAppend = c.histogram("log_append_seconds", "Time of one append to a log with its sync, over all shards of the node.")
	d.stateBytes = c.gauge("state_bytes", "Bytes of the state file.", shard)
	d.indexBytes = c.gauge("state_index_bytes", "Bytes of the index in memory.", shard)
	d.unsavedBytes = c.gauge("state_unsaved_bytes", "Bytes that are applied and not in the state file yet. The log has them.", shard)
	d.unsavedMax = c.gauge("state_unsaved_bytes_max", "The most in one shard before calls are refused (--gathered-bytes-max). Reserves may take seven eighths.")
	d.flushTook = c.histogram("state_flush_seconds", "Time of one commit of a state file with its syncs, over all shards of the node.")
	return d, c
}
