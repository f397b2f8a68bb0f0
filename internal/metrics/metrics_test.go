package metrics

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	durations "github.com/atmostonce/coordinator/internal/histogram"
	"github.com/atmostonce/coordinator/internal/rpc"
	"github.com/atmostonce/coordinator/internal/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// led is a shard that this node leads, with two followers.
func led(number int) shard.Numbers {
	n := shard.Numbers{Status: shard.Status{
		Shard: number, Leader: shard.Leader{NodeID: "n1", Self: true}, Term: 7, Applied: 40, Commit: 41, Last: 42,
		MailboxDepth: 3, MailboxBytes: 300, Waiters: 2, LogBytes: 8 << 20,
		Replicas: []shard.ReplicaStatus{
			{NodeID: "n1", Self: true}, {NodeID: "n2", Behind: 5, LastContact: 250 * time.Millisecond}, {NodeID: "n3", Behind: 42, LastContact: -1},
		},
	}}
	n.State.Records[admission.StateInDoubt] = 11
	n.State.Records[admission.StateNone] = 12
	n.State.FileBytes, n.State.IndexBytes, n.State.GatheredBytes, n.State.Namespaces = 4096, 48, 17, 2
	n.Overdue, n.OverdueFor = 9, 1500*time.Millisecond
	n.Replica.LeaderChanges, n.Replica.Reclaimed, n.Replica.LogEntries = 4, 100, 33
	n.Actor.Entries, n.Actor.Commands, n.Actor.Failed = 20, 90, 1
	n.Actor.Overloaded[0] = 6
	var appends durations.Durations
	appends.Observe(3 * time.Millisecond)
	appends.Observe(20 * time.Second)
	n.Replica.LogAppend = appends.Counts()
	return n
}

func testConfig() Config {
	return Config{
		Version: "v1.2.3", NodeID: "n1", ClusterID: func() string { return "c1" }, Ready: func() bool { return true },
		Disk:   func() Disk { return Disk{FreeBytes: 1000, Known: true, FreeBytesMin: 200} },
		Shards: 2, Numbers: func(i int) (shard.Numbers, bool) { return led(i), true },
		Ports: []Port{
			{Name: "client", Expected: true, Calls: rpc.NewCalls(), NotAfter: func() time.Time { return time.Unix(500, 0) },
				Connections: func() (int64, int64, uint64) { return 3, 4, 5 }},
			{Name: "peer", Calls: rpc.NewCalls()},
		},
		Actor: actor.Default(),
	}
}

// pedantic checks every metric against its description.
func pedantic(t testing.TB, cfg Config) *Metrics {
	t.Helper()
	m, err := newOn(prometheus.NewPedanticRegistry(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func scrape(t testing.TB, m *Metrics) string {
	t.Helper()
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if answer.Code != http.StatusOK {
		t.Fatalf("%d: %s", answer.Code, answer.Body)
	}
	return answer.Body.String()
}

// want fails unless each series is there with its value.
func want(t testing.TB, text string, series map[string]float64) {
	t.Helper()
	for name, value := range series {
		line := fmt.Sprintf("%s %v", name, value)
		switch {
		case math.IsInf(value, 1):
			line = name + " +Inf"
		case value >= 1e6:
			line = fmt.Sprintf("%s %.7g", name, value)
		}
		if !slices.Contains(strings.Split(text, "\n"), line) {
			t.Errorf("there is no %q among\n%s", line, strings.Join(linesWith(text, name), "\n"))
		}
	}
}

func linesWith(text, name string) (lines []string) {
	base, _, _ := strings.Cut(name, "{")
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, base) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

func TestWhatIsShown(t *testing.T) {
	text := scrape(t, pedantic(t, testConfig()))
	want(t, text, map[string]float64{
		`coordinator_node_info{cluster="c1",node="n1"}`: 1,
		`coordinator_ready`:                             1,
		`coordinator_shards`:                            2,
		`coordinator_disk_free_bytes`:                   1000,
		`coordinator_disk_free_bytes_min`:               200,
		`coordinator_storage_full`:                      0,

		`coordinator_certificate_expiry_timestamp_seconds{port="client"}`: 500,
		`coordinator_connections{port="client"}`:                          3,
		`coordinator_connections_max{port="client"}`:                      4,
		`coordinator_connections_refused_total{port="client"}`:            5,

		`coordinator_shard_up{shard="1"}`:            1,
		`coordinator_shard_is_leader{shard="0"}`:     1,
		`coordinator_shard_has_leader{shard="0"}`:    1,
		`coordinator_shard_term{shard="0"}`:          7,
		`coordinator_shard_applied_index{shard="0"}`: 40,
		`coordinator_shard_commit_index{shard="0"}`:  41,
		`coordinator_shard_last_index{shard="0"}`:    42,

		`coordinator_shard_leader_changes_total{shard="0"}`:             4,
		`coordinator_follower_behind_entries{node="n2",shard="0"}`:      5,
		`coordinator_follower_silent_seconds{node="n2",shard="0"}`:      0.25,
		`coordinator_follower_silent_seconds{node="n3",shard="1"}`:      math.Inf(1),
		`coordinator_records{shard="0",state="in_doubt"}`:               11,
		`coordinator_records{shard="0",state="tombstone"}`:              12,
		`coordinator_records{shard="0",state="committed"}`:              0,
		`coordinator_alarms_overdue{shard="0"}`:                         9,
		`coordinator_alarms_overdue_seconds{shard="0"}`:                 1.5,
		`coordinator_records_reclaimed_total{shard="0"}`:                100,
		`coordinator_namespaces{shard="0"}`:                             2,
		`coordinator_mailbox_calls{shard="0"}`:                          3,
		`coordinator_mailbox_calls_max`:                                 4096,
		`coordinator_mailbox_bytes{shard="0"}`:                          300,
		`coordinator_waiters{shard="0"}`:                                2,
		`coordinator_waiters_max`:                                       1024,
		`coordinator_overloaded_total{cause="mailbox",shard="0"}`:       6,
		`coordinator_overloaded_total{cause="answers",shard="0"}`:       0,
		`coordinator_entries_proposed_total{shard="0"}`:                 20,
		`coordinator_commands_proposed_total{shard="0"}`:                90,
		`coordinator_entries_failed_total{shard="0"}`:                   1,
		`coordinator_log_entries{shard="0"}`:                            33,
		`coordinator_state_bytes{shard="0"}`:                            4096,
		`coordinator_state_index_bytes{shard="0"}`:                      48,
		`coordinator_state_unsaved_bytes{shard="0"}`:                    17,
		`coordinator_log_append_seconds_bucket{le="0.0025"}`:            0,
		`coordinator_log_append_seconds_bucket{le="0.005"}`:             2,
		`coordinator_log_append_seconds_bucket{le="10"}`:                2,
		`coordinator_log_append_seconds_bucket{le="+Inf"}`:              4,
		`coordinator_log_append_seconds_sum`:                            40.006,
		`coordinator_log_append_seconds_count`:                          4,
		`coordinator_state_flush_seconds_count`:                         0,
		`coordinator_sessions{port="client"}`:                           0,
		`coordinator_call_seconds_count{method="Commit",port="client"}`: 0,

		`coordinator_calls_total{method="Reserve",outcome="granted",port="client"}`:        0,
		`coordinator_calls_total{method="Reserve",outcome="OVERLOADED",port="client"}`:     0,
		`coordinator_calls_total{method="Commit",outcome="OUTCOME_UNKNOWN",port="client"}`: 0,
	})
	for _, absent := range []string{
		`method="Reserve",outcome="done"`, `method="Commit",outcome="granted"`, `outcome="INVALID_ARGUMENT"`,
		`outcome="done",port="peer"`, `coordinator_call_seconds_count{method="Get"`, `follower_silent_seconds{node="n1"`, "NaN",
	} {
		if strings.Contains(text, absent) {
			t.Errorf("%s is shown:\n%s", absent, strings.Join(linesWith(text, "coordinator_calls_total"), "\n"))
		}
	}
	for _, runtime := range []string{"go_goroutines ", "go_gc_duration_seconds", "process_open_fds ", "process_resident_memory_bytes "} {
		if !strings.Contains(text, "\n"+runtime) {
			t.Errorf("%s is not shown", runtime)
		}
	}
}

// What is not known is not shown, and what is not open is shown as that.
func TestWhatIsNotShown(t *testing.T) {
	cfg := testConfig()
	cfg.ClusterID = func() string { return "" }
	cfg.Ready = func() bool { return false }
	cfg.Disk = func() Disk { return Disk{Full: true} }
	cfg.Numbers = func(i int) (shard.Numbers, bool) {
		n := led(i)
		n.Leader.Self = false
		return n, i == 1
	}
	text := scrape(t, pedantic(t, cfg))
	want(t, text, map[string]float64{
		`coordinator_ready`: 0, `coordinator_storage_full`: 1, `coordinator_node_info{cluster="",node="n1"}`: 1,
		`coordinator_shard_up{shard="0"}`: 0, `coordinator_shard_up{shard="1"}`: 1, `coordinator_shard_is_leader{shard="1"}`: 0,
	})
	for _, absent := range []string{"coordinator_disk_free_bytes ", `term{shard="0"}`, "coordinator_follower_"} {
		if strings.Contains(text, absent) {
			t.Errorf("%s is shown", absent)
		}
	}
}

// Invariants 2 and 3: a shard that hangs keeps nobody waiting for long, and is asked again
// only once it has answered.
func TestAShardThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		hang := make(chan struct{})
		var asked atomic.Int64
		cfg.Numbers = func(i int) (shard.Numbers, bool) {
			if i == 0 {
				asked.Add(1)
				<-hang
			}
			return led(i), true
		}
		m := pedantic(t, cfg)
		began := time.Now()
		for range scrapesMax { // at the same time, or soon after: it has had its second
			text := scrape(t, m)
			if took := time.Since(began); took != time.Second {
				t.Errorf("it took %v", took)
			}
			want(t, text, map[string]float64{`coordinator_shard_up{shard="0"}`: 0, `coordinator_shard_up{shard="1"}`: 1})
			if strings.Contains(text, `coordinator_shard_term{shard="0"}`) {
				t.Error("something else is shown of a shard that hangs")
			}
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("it was asked %d times", n)
		}
		close(hang)
		synctest.Wait()
		began = time.Now()
		want(t, scrape(t, m), map[string]float64{`coordinator_shard_up{shard="0"}`: 1})
		if took := time.Since(began); took != 0 || asked.Load() != 2 {
			t.Errorf("it took %v, and was asked %d times", took, asked.Load())
		}
		m.Wait()
	})
}

// One more than may is told so at once; the others get their answers.
func TestScrapesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := testConfig()
		hang := make(chan struct{})
		cfg.Numbers = func(i int) (shard.Numbers, bool) {
			<-hang
			return led(i), true
		}
		m := pedantic(t, cfg)
		handler := m.Handler()
		ask := func() chan int {
			code := make(chan int, 1)
			go func() {
				answer := httptest.NewRecorder()
				handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
				code <- answer.Code
			}()
			synctest.Wait()
			return code
		}
		var served []chan int
		for range scrapesMax {
			served = append(served, ask())
		}
		began := time.Now()
		if code := <-ask(); code != http.StatusServiceUnavailable || time.Since(began) != 0 {
			t.Errorf("one too many: %d after %v", code, time.Since(began))
		}
		close(hang)
		for _, code := range served {
			if got := <-code; got != http.StatusOK {
				t.Errorf("got %d", got)
			}
		}
		m.Wait()
	})
}

// Names, types, units and help are as Prometheus asks for.
func TestLint(t *testing.T) {
	problems, err := promlint.New(strings.NewReader(scrape(t, pedantic(t, testConfig())))).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// Invariant 1: the values of labels are few, and none has anything of a caller.
func TestLabelValuesAreBounded(t *testing.T) {
	text := scrape(t, pedantic(t, testConfig()))
	values := make(map[string]map[string]bool)
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		for _, pair := range regexp.MustCompile(`(\w+)="([^"]*)"`).FindAllStringSubmatch(line, -1) {
			if values[pair[1]] == nil {
				values[pair[1]] = make(map[string]bool)
			}
			values[pair[1]][pair[2]] = true
		}
	}
	for label := range values {
		if !slices.Contains([]string{"version", "go_version", "node", "cluster", "port", "method", "outcome", "shard", "state", "cause", "le"}, label) {
			t.Errorf("a label %s, with %v", label, values[label])
		}
	}
}

// Everything that is shown is in the catalogue, and all of that is shown.
func TestTheCatalogueIsWhatIsShown(t *testing.T) {
	m := pedantic(t, testConfig())
	shown := make(map[string]string)
	for line := range strings.Lines(scrape(t, m)) {
		if words := strings.Fields(line); len(words) == 4 && words[1] == "TYPE" && strings.HasPrefix(words[2], prefix) {
			shown[words[2]] = words[3]
		}
	}
	for _, e := range m.collector.catalogue.entries {
		if shown[e.name] != e.kind {
			t.Errorf("%s is a %s, and shown as %q", e.name, e.kind, shown[e.name])
		}
		if !strings.HasSuffix(e.help, ".") || strings.ContainsAny(e.help, "|\n") {
			t.Errorf("%s: %q", e.name, e.help)
		}
		delete(shown, e.name)
	}
	for name := range shown {
		t.Errorf("%s is not in the catalogue", name)
	}
}

const (
	page  = "../../docs/metrics.md"
	begin = "<!-- Written by UPDATE=1 go test ./internal/metrics -run TestDocument. Do not edit down to the next such line. -->\n"
	end   = "\n<!-- Written by hand from here on. -->\n"
)

// docs/metrics.md has the catalogue, and names no metric that does not exist.
func TestDocument(t *testing.T) {
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	got, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		t.Fatal("the marks of what is written by the test are not there")
	}
	_, c := describe()
	var tables bytes.Buffer
	if err := c.write(&tables); err != nil {
		t.Fatal(err)
	}
	if os.Getenv("UPDATE") != "" {
		got = tables.String()
		if err := os.WriteFile(page, []byte(before+begin+got+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got != tables.String() {
		t.Error("docs/metrics.md is out of date: go test ./internal/metrics -run TestDocument, with UPDATE=1 to write it")
	}
	exists := make(map[string]bool)
	for _, e := range c.entries {
		exists[e.name] = true
		if e.kind == histogram {
			for _, part := range []string{"_bucket", "_sum", "_count"} {
				exists[e.name+part] = true
			}
		}
	}
	for _, name := range regexp.MustCompile(`\bcoordinator_\w+`).FindAllString(before+after, -1) {
		if !exists[name] {
			t.Errorf("docs/metrics.md names %s, which does not exist", name)
		}
	}
}

// A scraper may ask for gzip.
func TestCompressed(t *testing.T) {
	request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	request.Header.Set("Accept-Encoding", "gzip")
	answer := httptest.NewRecorder()
	pedantic(t, testConfig()).Handler().ServeHTTP(answer, request)
	plain, err := gzip.NewReader(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(plain)
	if err != nil || !strings.Contains(string(text), "\ncoordinator_ready 1\n") {
		t.Errorf("%v, %s", err, text)
	}
}

func TestConfigIsChecked(t *testing.T) {
	cfg := testConfig()
	cfg.Numbers = nil
	if _, err := New(cfg); err == nil {
		t.Error("metrics without numbers")
	}
}

func BenchmarkScrape(b *testing.B) {
	for _, shards := range []int{3, 1024} {
		b.Run(fmt.Sprint("shards=", shards), func(b *testing.B) {
			cfg := testConfig()
			cfg.Shards = shards
			m, err := New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				b.SetBytes(int64(len(scrape(b, m))))
			}
		})
	}
}
