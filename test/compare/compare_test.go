package compare

import (
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
)

var (
	roundsFlag   = flag.Int("rounds", 0, "how often each takes its turn; 0: nothing is measured")
	lastsFlag    = flag.Duration("turn", 3*time.Second, "how long a turn lasts; its first fifth is not counted")
	callersFlag  = flag.String("callers", "1,16,64,256", "the numbers of callers of pairs")
	tablesFlag   = flag.String("tables", ".", "a regular expression: which tables")
	whoFlag      = flag.String("contenders", ".", "a regular expression: which contenders")
	outFlag      = flag.String("out", "", "a file that the results are written to as well")
	untilFlag    = flag.Duration("until", time.Hour, "no round is begun after this time")
	shardsFlag   = flag.Int("shards", shardsDefault, "how many shards the cluster with other settings has")
	programFlag  = flag.String("program", "", "a coordinator of another build, of which one more cluster and one more node take their turns at pairs")
	settingsFlag = flag.String("settings", "", "flags such as \"--proposals-max 1\" of one more cluster, which takes its turns at pairs beside the one with none")
	profileFlag  = flag.String("profiles", "", "a directory for profiles of the nodes and the callers; for TestProfile")
)

// Names of contenders, which ratios are of.
const (
	oursUnary     = "coordinator, a call each"
	oursStreamed  = "coordinator, Go client"
	oursOneUnary  = "coordinator, 1 node, a call each"
	oursOneStream = "coordinator, 1 node, Go client"
	otherwise     = ", otherwise"
	oursReserve   = "coordinator, Reserve"
	oursLeader    = "coordinator, Go client"
	oursSpread    = "coordinator, a call each, over all nodes"
	etcdLeased    = "etcd, a lease each"
	etcdShared    = "etcd, shared leases"
	etcdPut       = "etcd, put if absent"
	etcdName      = "etcd"
	redisName     = "Redis, 1 node"
	postgresName  = "PostgreSQL, 1 node"
	postgresSwept = "PostgreSQL, 1 node, deadlines swept"
	echoName      = "gRPC echo"
)

// systems is everything that was started; nil: it is not installed.
type systems struct {
	three, one *coordinator
	other      *coordinator // three nodes with other settings, or of another build
	otherOne   *coordinator // one such node
	etcd       *etcd
	redis      *redisServer
	postgres   *postgres
	echo       contender
	versions   []string
}

func startAll(t testing.TB) *systems {
	t.Helper()
	programs := buildCoordinator(t, false)
	s := &systems{three: startCoordinator(t, programs, 3, shardsDefault), one: startCoordinator(t, programs, 1, shardsDefault), echo: startEcho(t)}
	if *settingsFlag != "" || *shardsFlag != shardsDefault || *programFlag != "" {
		other := programs
		if *programFlag != "" {
			other.Coordinator = *programFlag
		}
		s.other = startCoordinator(t, other, 3, *shardsFlag, strings.Fields(*settingsFlag)...)
		s.otherOne = startCoordinator(t, other, 1, *shardsFlag, strings.Fields(*settingsFlag)...)
	}
	if program := findEtcd(t); program != "" {
		s.etcd = startEtcd(t, program)
		s.versions = append(s.versions, etcdVersion(t, program))
	}
	if program := findRedis(t); program != "" {
		s.redis = startRedis(t, program)
		s.versions = append(s.versions, redisVersion(t, program))
	}
	if programs := findPostgres(t); programs != "" {
		s.postgres = startPostgres(t, programs)
		s.versions = append(s.versions, postgresVersion(t, programs))
	}
	return s
}

// tables is what is measured, and the goals.
func (s *systems) tables(callers []int) []table {
	three, one := s.three, s.one
	pairs := table{name: "pairs", callers: callers, contenders: []contender{
		{name: oursUnary, do: three.pair, before: three.lookUp, servers: three.pids, entries: three.logged},
		{name: oursStreamed, do: three.streamed, servers: three.pids, entries: three.logged},
	}, ratios: []ratio{
		{ours: oursUnary, theirs: etcdLeased, callers: []int{64, 256}, floor: 2.5, goal: 4},
		{ours: oursUnary, theirs: etcdShared, callers: []int{64, 256}, floor: 1.5, goal: 2.5},
		{ours: oursStreamed, theirs: etcdLeased, callers: []int{256}, floor: 4, goal: 8},
	}}
	single := table{name: "pairs on a single node", callers: []int{64}, contenders: []contender{
		{name: oursOneUnary, do: one.pair, before: one.lookUp, servers: one.pids, entries: one.logged},
		{name: oursOneStream, do: one.streamed, servers: one.pids, entries: one.logged},
	}, ratios: []ratio{
		{ours: oursOneUnary, theirs: postgresName, callers: []int{64}, floor: 2, goal: 3},
		{ours: oursOneUnary, theirs: postgresSwept, callers: []int{64}, floor: 2, goal: 3},
		{ours: oursOneStream, theirs: redisName, callers: []int{64}, floor: 0.7, goal: 1},
	}}
	alone := table{name: "one caller", callers: []int{1}, contenders: []contender{
		{name: oursReserve, do: three.reserve, before: three.lookUp, servers: three.pids, entries: three.logged},
	}, ratios: []ratio{
		{ours: oursReserve, theirs: etcdPut, callers: []int{1}, latency: true, floor: 0.85, goal: 0.65},
	}}
	storm := table{name: "duplicates of one key", callers: []int{64}, contenders: []contender{
		{name: oursLeader, do: three.duplicate, before: three.takeOnce(), servers: three.pids, entries: three.logged},
		{name: oursSpread, do: three.duplicateSpread, servers: three.pids, entries: three.logged},
		s.echo,
	}, ratios: []ratio{
		{ours: oursLeader, theirs: echoName, callers: []int{64}, floor: 0.5, goal: 0.75},
		{ours: oursSpread, theirs: echoName, callers: []int{64}, floor: 0.25, goal: 0.45},
	}}
	if o := s.other; o != nil {
		pairs.contenders = append(pairs.contenders,
			contender{name: oursUnary + otherwise, do: o.pair, before: o.lookUp, servers: o.pids, entries: o.logged},
			contender{name: oursStreamed + otherwise, do: o.streamed, servers: o.pids, entries: o.logged})
	}
	if o := s.otherOne; o != nil {
		single.contenders = append(single.contenders,
			contender{name: oursOneUnary + otherwise, do: o.pair, before: o.lookUp, servers: o.pids, entries: o.logged},
			contender{name: oursOneStream + otherwise, do: o.streamed, servers: o.pids, entries: o.logged})
	}
	if e := s.etcd; e != nil {
		pairs.contenders = append(pairs.contenders,
			contender{name: etcdLeased, do: e.leased, servers: e.pids},
			contender{name: etcdShared, do: e.shared, servers: e.pids})
		alone.contenders = append(alone.contenders, contender{name: etcdPut, do: e.putIfAbsent, servers: e.pids})
		storm.contenders = append(storm.contenders, contender{name: etcdName, do: e.duplicate, before: e.takeKey, servers: e.pids})
	}
	if r := s.redis; r != nil {
		single.contenders = append(single.contenders, contender{name: redisName, do: r.pair, servers: r.pids})
		storm.contenders = append(storm.contenders, contender{name: redisName, do: r.duplicate, before: r.takeKey, servers: r.pids})
	}
	if p := s.postgres; p != nil {
		single.contenders = append(single.contenders,
			contender{name: postgresName, do: p.pair(plain), servers: p.pids},
			contender{name: postgresSwept, do: p.pair(swept), servers: p.pids})
		storm.contenders = append(storm.contenders, contender{name: postgresName, do: p.duplicate, before: p.takeKey, servers: p.pids})
	}
	return []table{alone, pairs, single, storm}
}

// takeOnce returns what commits the key of the duplicates before the first turn.
func (c *coordinator) takeOnce() func(testing.TB) {
	done := false
	return func(t testing.TB) {
		t.Helper()
		if !done {
			c.takeKey(t)
		}
		done = true
	}
}

// TestCompare measures, and prints tables. That a goal is missed does not fail it: the
// machine may be a bad one. That a contender fails at its job does.
func TestCompare(t *testing.T) {
	if *roundsFlag == 0 {
		t.Skip("it measures for half an hour: make bench-compare")
	}
	began := time.Now()
	var callers []int
	for field := range strings.SplitSeq(*callersFlag, ",") {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > callersMost {
			t.Fatalf("-callers: %q is not a number from 1 to %d", field, callersMost)
		}
		callers = append(callers, n)
	}
	wanted := regexp.MustCompile(*tablesFlag)
	s := startAll(t)
	tables := slices.DeleteFunc(s.tables(callers), func(one table) bool { return !wanted.MatchString(one.name) })
	who := regexp.MustCompile(*whoFlag)
	for i := range tables {
		tables[i].contenders = slices.DeleteFunc(tables[i].contenders, func(c contender) bool { return !who.MatchString(c.name) })
	}
	out := io.Writer(os.Stdout)
	if *outFlag != "" {
		file, err := os.Create(*outFlag)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		out = io.MultiWriter(os.Stdout, file)
	}
	fmt.Fprintf(out, "%s\n%s\n", machine(t), strings.Join(append([]string{runtime.Version()}, s.versions...), ", "))
	if wanted.MatchString("idle") {
		s.idle(t, out)
	}

	taken := make(map[cell][]turn)
	rounds := 0
	for ; rounds < *roundsFlag && time.Since(began) < *untilFlag; rounds++ {
		for _, one := range tables {
			for _, callers := range one.callers {
				for i := range one.contenders {
					// The next round begins with the next one.
					c := one.contenders[(i+rounds)%len(one.contenders)]
					got := s.takeTurn(t, one, c, callers)
					at := cell{one.name, c.name, callers}
					taken[at] = append(taken[at], got)
				}
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d is over after %v\n", rounds+1, *roundsFlag, time.Since(began).Round(time.Second))
	}
	fmt.Fprintf(out, "%d rounds, a turn %v, %v in all\n", rounds, *lastsFlag, time.Since(began).Round(time.Second))
	for _, one := range tables {
		printTable(out, one, taken)
	}
}

func (s *systems) takeTurn(t *testing.T, one table, c contender, callers int) turn {
	t.Helper()
	before := uint64(0)
	storm := strings.HasPrefix(one.name, "duplicates")
	if storm {
		if c.before != nil {
			c.before(t)
		}
		before = s.three.logged(t)
	}
	got := c.take(t, callers, *lastsFlag)
	if got.failed*100 > got.done {
		t.Errorf("%s, %s, %d callers: %d of %d failed: %v", one.name, c.name, callers, got.failed, got.failed+got.done, got.why)
	}
	// A tick of the clock or an election has an entry too; a call that had one would
	// leave thousands.
	if wrote := s.three.logged(t) - before; storm && wrote > 100 {
		t.Errorf("%s: %d duplicates wrote %d log entries", c.name, got.done, wrote)
	}
	return got
}

func printTable(out io.Writer, one table, taken map[cell][]turn) {
	fmt.Fprintf(out, "\n## %s\n\n", one.name)
	w := tabwriter.NewWriter(out, 0, 8, 1, ' ', 0)
	fmt.Fprintln(w, "| callers\t| \t| a second (least–most)\t| p50\t| p99\t| processor time of servers + callers\t| log entries\t| failed\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, callers := range one.callers {
		for _, c := range one.contenders {
			turns := taken[cell{one.name, c.name, callers}]
			of := func(value func(turn) float64) spread {
				var numbers []float64
				for _, got := range turns {
					numbers = append(numbers, value(got))
				}
				return spreadOf(numbers)
			}
			micro := func(value func(turn) time.Duration) string {
				return time.Duration(of(func(got turn) float64 { return float64(value(got)) }).median).Round(time.Microsecond).String()
			}
			rate := of(func(got turn) float64 { return got.rate })
			failed := of(func(got turn) float64 { return float64(got.failed) })
			entries := ""
			if c.entries != nil {
				entries = fmt.Sprintf("%.2f", of(func(got turn) float64 { return got.entries }).median)
			}
			fmt.Fprintf(w, "| %d\t| %s\t| %.0f (%.0f–%.0f)\t| %s\t| %s\t| %s + %s\t| %s\t| %.0f\t|\n", callers, c.name,
				rate.median, rate.least, rate.most,
				micro(func(got turn) time.Duration { return got.p50 }), micro(func(got turn) time.Duration { return got.p99 }),
				micro(func(got turn) time.Duration { return got.servers }), micro(func(got turn) time.Duration { return got.load }),
				entries, failed.most)
		}
	}
	w.Flush()
	fmt.Fprintln(out)
	for _, r := range one.ratios {
		for _, callers := range r.callers {
			ours, theirs := taken[cell{one.name, r.ours, callers}], taken[cell{one.name, r.theirs, callers}]
			var ratios []float64
			for i := range min(len(ours), len(theirs)) {
				ratios = append(ratios, r.of(ours[i], theirs[i]))
			}
			if len(ratios) == 0 {
				fmt.Fprintf(out, "- %v: not measured\n", r)
				continue
			}
			got := spreadOf(ratios)
			fmt.Fprintf(out, "- %v; %d callers: %.2f (%.2f–%.2f), %s\n", r, callers, got.median, got.least, got.most, r.verdict(got.median))
		}
	}
}

// idle measures what nodes cost that nobody calls, all at the same time.
func (s *systems) idle(t testing.TB, out io.Writer) {
	t.Helper()
	const settles, lasts = 5 * time.Second, 20 * time.Second
	time.Sleep(settles)
	measured := []struct {
		name string
		pids func() []int
	}{{"coordinator, 3 nodes", s.three.pids}}
	if s.etcd != nil {
		measured = append(measured, struct {
			name string
			pids func() []int
		}{"etcd, 3 nodes", s.etcd.pids})
	}
	before, began := make([]time.Duration, len(measured)), time.Now()
	for i, m := range measured {
		before[i] = processorTime(m.pids())
	}
	time.Sleep(lasts)
	took := time.Since(began)
	fmt.Fprint(out, "\n## idle\n\n")
	for i, m := range measured {
		fmt.Fprintf(out, "- %s: %.1f %% of one core\n", m.name, 100*float64(processorTime(m.pids())-before[i])/float64(took))
	}
}

// machine describes where it runs.
func machine(t testing.TB) string {
	t.Helper()
	text := fmt.Sprintf("%s/%s, %d processors", runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
	if cpu, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(cpu)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				text += ", " + strings.TrimSpace(value)
				break
			}
		}
	}
	if kernel, err := exec.CommandContext(t.Context(), "uname", "-r").Output(); err == nil {
		text += ", kernel " + strings.TrimSpace(string(kernel))
	}
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		text += ", load at the start " + strings.Join(strings.Fields(string(load))[:3], " ")
	}
	return text
}

// TestProfile profiles nodes at saturation.
func TestProfile(t *testing.T) {
	if *profileFlag == "" {
		t.Skip("-profiles names no directory")
	}
	for _, one := range []struct {
		name     string
		nodes    int
		callers  int
		streamed bool
		storm    bool
	}{
		{name: "unary", nodes: 3, callers: 256},
		{name: "a few", nodes: 3, callers: 64},
		{name: "streamed", nodes: 3, callers: 256, streamed: true},
		{name: "storm", nodes: 3, callers: 64, storm: true},
		{name: "one node", nodes: 1, callers: 64},
		{name: "one node, streamed", nodes: 1, callers: 64, streamed: true},
	} {
		t.Run(one.name, func(t *testing.T) {
			dir := *profileFlag + "/" + one.name
			if err := os.MkdirAll(dir, 0o750); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PROFILE_TO", dir+"/node")
			c := startCoordinator(t, buildCoordinator(t, true), one.nodes, *shardsFlag, strings.Fields(*settingsFlag)...)
			do := c.pair
			switch {
			case one.streamed:
				do = c.streamed
			case one.storm:
				c.takeKey(t)
				do = c.duplicate
			}
			contender{name: one.name, do: do, before: c.lookUp, servers: c.pids}.profile(t, dir, one.callers)
		})
	}
}
