package metrics

import (
	"math"
	"runtime"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	durations "github.com/atmostonce/coordinator/internal/histogram"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// collector reads everything when it is asked. It implements [prometheus.Collector].
type collector struct {
	cfg Config
	described
	catalogue *catalogue
	bounds    []float64 // of histograms, in seconds

	turn     chan struct{} // of capacity 1: full while somebody collects
	readings *readings
}

func newCollector(cfg Config) *collector {
	c := &collector{cfg: cfg, turn: make(chan struct{}, 1), readings: newReadings(cfg.Shards, cfg.Numbers, cfg.ReadWithin)}
	c.described, c.catalogue = describe()
	for _, bound := range durations.Bounds() {
		c.bounds = append(c.bounds, bound.Seconds())
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for _, e := range c.catalogue.entries {
		out <- e.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	to := sink{out: out, bounds: c.bounds}
	c.collectNode(to)
	for _, port := range c.cfg.Ports {
		c.collectCalls(to, port)
	}
	var appends, flushes durations.Counts
	for i, answer := range c.readings.all() {
		label := strconv.Itoa(i)
		to.flag(c.up, answer.up, label)
		if !answer.up {
			continue
		}
		c.collectShard(to, label, &answer)
		appends.Add(&answer.numbers.Replica.LogAppend)
		flushes.Add(&answer.numbers.Replica.StateFlush)
	}
	to.durations(c.logAppend, &appends)
	to.durations(c.flushTook, &flushes)
}

func (c *collector) collectNode(to sink) {
	to.gauge(c.buildInfo, 1, c.cfg.Version, runtime.Version())
	to.gauge(c.nodeInfo, 1, c.cfg.NodeID, c.cfg.ClusterID())
	to.flag(c.ready, c.cfg.Ready())
	to.gauge(c.shards, float64(c.cfg.Shards))
	disk := c.cfg.Disk()
	if disk.Known {
		to.gauge(c.diskFree, float64(disk.FreeBytes))
	}
	to.gauge(c.diskFreeMin, float64(disk.FreeBytesMin))
	to.flag(c.storageFull, disk.Full)
	to.gauge(c.mailboxCallsMax, float64(c.cfg.Actor.MailboxCommandsMax))
	to.gauge(c.mailboxBytesMax, float64(c.cfg.Actor.MailboxBytesMax))
	to.gauge(c.waitersMax, float64(c.cfg.Actor.WaitersMax))
	to.gauge(c.unsavedMax, float64(c.cfg.Actor.GatheredBytesMax))
}

func (c *collector) collectCalls(to sink, port Port) {
	outcomes := rpc.Outcomes()
	for _, m := range port.Calls.Counts() {
		for i, n := range m.Outcomes {
			if n > 0 || port.Expected && expected(m.Method, outcomes[i]) {
				to.counter(c.calls, n, port.Name, m.Method, outcomes[i])
			}
		}
		if m.Took != nil && (m.Took.Count() > 0 || port.Expected && owners(m.Method)) {
			to.durations(c.callSeconds, m.Took, port.Name, m.Method)
		}
	}
	to.gauge(c.sessions, float64(port.Calls.Sessions()), port.Name)
	to.gauge(c.underWay, float64(port.Calls.UnderWay()), port.Name)
	if port.Connections != nil {
		open, most, refused := port.Connections()
		to.gauge(c.connections, float64(open), port.Name)
		to.gauge(c.connectionsMax, float64(most), port.Name)
		to.counter(c.connectionsRefused, refused, port.Name)
	}
	if port.NotAfter != nil {
		to.gauge(c.certificateEnds, float64(port.NotAfter().Unix()), port.Name)
	}
}

// expected reports whether a series is there from the start, at 0: so that the first such
// call is seen as an increase. It is for how calls succeed, and for what is the server's
// trouble.
func expected(method, outcome string) bool {
	switch outcome {
	case "done":
		return method != "Reserve"
	case "granted", "committed", "pending", "in_doubt":
		return method == "Reserve"
	}
	switch reason.Reason(outcome).Row().Code {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded:
		return true
	}
	return false
}

// owners reports whether a method is one of those that callers of admission live by, whose
// times are shown before there are any.
func owners(method string) bool {
	switch method {
	case "Reserve", "Commit", "Release", "Extend":
		return true
	}
	return false
}

// stateLabel is a state as a label has it.
func stateLabel(state admission.State) string {
	switch state {
	case admission.StateNone:
		return "tombstone"
	case admission.StatePending:
		return "pending"
	case admission.StateLapsed:
		return "lapsed"
	case admission.StateInDoubt:
		return "in_doubt"
	case admission.StateCommitted:
		return "committed"
	case admission.StateReleased:
		return "released"
	}
	return state.String()
}

func (c *collector) collectShard(to sink, label string, answer *reading) {
	n := &answer.numbers
	to.flag(c.hasLeader, n.Leader.Known(), label)
	to.flag(c.isLeader, n.Leader.Self, label)
	to.gauge(c.term, float64(n.Term), label)
	to.counter(c.leaderChanges, n.Replica.LeaderChanges, label)
	to.gauge(c.applied, float64(n.Applied), label)
	to.gauge(c.commit, float64(n.Commit), label)
	to.gauge(c.last, float64(n.Last), label)
	if n.Leader.Self {
		for _, replica := range n.Replicas {
			if replica.Self {
				continue
			}
			silent := replica.LastContact.Seconds()
			if replica.LastContact < 0 {
				silent = math.Inf(1)
			}
			to.gauge(c.behind, float64(replica.Behind), label, replica.NodeID)
			to.gauge(c.silent, silent, label, replica.NodeID)
		}
	}

	for state, records := range n.State.Records {
		to.gauge(c.records, float64(records), label, stateLabel(admission.State(state)))
	}
	to.gauge(c.namespaces, float64(n.State.Namespaces), label)
	to.gauge(c.overdue, float64(n.Overdue), label)
	to.gauge(c.overdueFor, n.OverdueFor.Seconds(), label)
	to.counter(c.reclaimed, n.Replica.Reclaimed, label)

	to.gauge(c.mailboxCalls, float64(n.MailboxDepth), label)
	to.gauge(c.mailboxBytes, float64(n.MailboxBytes), label)
	to.gauge(c.waiters, float64(n.Waiters), label)
	for i, cause := range actor.OverloadCauses() {
		to.counter(c.overloaded, n.Actor.Overloaded[i], label, cause)
	}

	to.counter(c.entries, n.Actor.Entries, label)
	to.counter(c.commands, n.Actor.Commands, label)
	to.counter(c.entriesFailed, n.Actor.Failed, label)
	to.gauge(c.logEntries, float64(n.Replica.LogEntries), label)
	to.gauge(c.logBytes, float64(n.LogBytes), label)
	to.gauge(c.stateBytes, float64(n.State.FileBytes), label)
	to.gauge(c.indexBytes, float64(n.State.IndexBytes), label)
	to.gauge(c.unsavedBytes, float64(n.State.GatheredBytes), label)
}

// sink is where what is collected goes.
type sink struct {
	out    chan<- prometheus.Metric
	bounds []float64
}

func (s sink) gauge(d *prometheus.Desc, value float64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

func (s sink) flag(d *prometheus.Desc, set bool, labels ...string) {
	value := 0.0
	if set {
		value = 1
	}
	s.gauge(d, value, labels...)
}

func (s sink) counter(d *prometheus.Desc, value uint64, labels ...string) {
	s.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(value), labels...)
}

// durations shows what a histogram counts: here each bucket holds those below it.
func (s sink) durations(d *prometheus.Desc, counts *durations.Counts, labels ...string) {
	buckets, below := make(map[float64]uint64, len(s.bounds)), uint64(0)
	for i, bound := range s.bounds {
		below += counts.Buckets[i]
		buckets[bound] = below
	}
	s.out <- prometheus.MustNewConstHistogram(d, counts.Count(), counts.Sum.Seconds(), buckets, labels...)
}
