package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/rpc"
)

// scraped is what a node shows, by series.
type scraped map[string]float64

func (w *world) scrape(name string) scraped {
	w.t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.network.dial(ctx, address)
		},
	}}
	answer, err := client.Get("http://" + name + ":7425/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		w.t.Fatalf("%d, %v: %s", answer.StatusCode, err, text)
	}
	return parse(w.t, string(text))
}

func parse(t *testing.T, text string) scraped {
	t.Helper()
	series := make(scraped)
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if at := strings.LastIndex(line, "} "); at > 0 { // a label may have a blank in it
			name, value = line[:at+1], strings.TrimSpace(line[at+2:])
		}
		parsed, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		series[name] = parsed
	}
	return series
}

// sum adds up the series of a metric that have all of the labels.
func (s scraped) sum(metric string, labels ...string) (sum float64) {
next:
	for name, value := range s {
		if name != metric && !strings.HasPrefix(name, metric+"{") {
			continue
		}
		for _, label := range labels {
			if !strings.Contains(name, label) {
				continue next
			}
		}
		sum += value
	}
	return sum
}

func withMetrics(c *Config) { c.MetricsListen = c.NodeID + ":7425" }

// What nodes show while calls are made: reservations that nobody settles are counted until
// someone does, on every replica, and after a restart as well.
func TestMetricsOfReservationsInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		names := []string{"n1", "n2", "n3"}
		for _, name := range names {
			w.start(name, withMetrics)
		}
		w.serving()
		inDoubt := func(when string, want float64) {
			t.Helper()
			for _, name := range names {
				if got := w.scrape(name).sum("coordinator_records", `state="in_doubt"`); got != want {
					t.Errorf("%s: %s counts %v in doubt, not %v", when, name, got, want)
				}
			}
		}
		client := coordinatorv1.NewCoordinatorServiceClient(w.client("n1"))
		const held = 5
		elsewhere := 0.0 // Reserves that another node carries out
		for i := range held {
			var header metadata.MD
			answer, err := client.Reserve(t.Context(), &coordinatorv1.ReserveRequest{
				Identity: &coordinatorv1.Identity{Key: fmt.Sprint("held", i)}, PendingTtl: durationpb.New(time.Minute),
				OnLapse: coordinatorv1.OnLapse_ON_LAPSE_HOLD,
			}, grpc.Header(&header))
			if leader := header.Get(rpc.LeaderKey); len(leader) != 1 || leader[0] != "n1:7420" {
				elsewhere++
			}
			if err != nil || answer.GetGranted() == nil {
				t.Fatal(answer, err)
			}
		}
		inDoubt("while they are pending", 0)
		if pending := w.scrape("n1").sum("coordinator_records", `state="pending"`); pending != held {
			t.Errorf("%v are pending, not %d", pending, held)
		}
		time.Sleep(2 * time.Minute)
		inDoubt("once they have lapsed", held)

		id := &coordinatorv1.Identity{Key: "held0"}
		got, err := client.Get(t.Context(), &coordinatorv1.GetRequest{Identity: id})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Resolve(t.Context(), &coordinatorv1.ResolveRequest{
			Identity: id, Revision: got.GetRecord().GetRevision(),
			Settlement: &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}}, Note: "did not run",
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // until the followers have heard that it is committed
		inDoubt("once one is settled", held-1)

		var reclaimed, leads, commands float64
		for _, name := range names {
			s := w.scrape(name)
			reclaimed += s.sum("coordinator_records_reclaimed_total")
			leads += s.sum("coordinator_shard_is_leader")
			commands += s.sum("coordinator_commands_proposed_total")
			if up, ready, led := s.sum("coordinator_shard_up"), s["coordinator_ready"], s.sum("coordinator_shard_has_leader"); up != 3 || led != 3 || ready != 1 {
				t.Errorf("%s: %v shards are up, %v have a leader, ready %v", name, up, led, ready)
			}
			if s.sum("coordinator_log_append_seconds_count") == 0 || s.sum("coordinator_state_flush_seconds_count") == 0 {
				t.Errorf("%s times no append or no flush", name)
			}
			if s["coordinator_disk_free_bytes"] != 1<<40 || s["coordinator_storage_full"] != 0 {
				t.Errorf("%s: free space %v", name, s["coordinator_disk_free_bytes"])
			}
		}
		if reclaimed != 3*held || leads != 3 || commands != held+1 {
			t.Errorf("%v records are reclaimed on three replicas, %v shards are led, %v commands were proposed", reclaimed, leads, commands)
		}
		n1 := w.scrape("n1")
		for series, want := range map[string]float64{
			`coordinator_calls_total{method="Reserve",outcome="granted",port="client"}`: held,
			`coordinator_calls_total{method="Resolve",outcome="done",port="client"}`:    1,
			`coordinator_calls_total{method="Get",outcome="done",port="client"}`:        1,
			`coordinator_call_seconds_count{method="Reserve",port="client"}`:            held,
		} {
			if n1[series] != want {
				t.Errorf("%s is %v, not %v", series, n1[series], want)
			}
		}
		var forwarded float64
		for _, name := range names {
			forwarded += w.scrape(name).sum("coordinator_calls_total", `port="peer"`, `method="Reserve"`, `outcome="granted"`)
		}
		if forwarded != elsewhere {
			t.Errorf("%v reservations were made for another node, not %v", forwarded, elsewhere)
		}

		for _, name := range names {
			w.stop(name)
		}
		for _, name := range names {
			w.start(name, withMetrics)
		}
		w.serving()
		inDoubt("after a restart", held-1)
	})
}

// A node without a majority still shows what it has.
func TestMetricsWithoutALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		for _, name := range []string{"n1", "n2", "n3"} {
			w.start(name, withMetrics)
		}
		w.serving()
		w.admits("k", "n1", "n2")
		w.stop("n2")
		w.stop("n3")
		time.Sleep(time.Minute)
		began := time.Now()
		s := w.scrape("n1")
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if s["coordinator_ready"] != 0 || s.sum("coordinator_shard_has_leader") != 0 || s.sum("coordinator_shard_is_leader") != 0 ||
			s.sum("coordinator_shard_up") != 3 || s.sum("coordinator_records", `state="pending"`) != 1 {
			t.Errorf("%v", s)
		}
		if _, err := w.reserve("n1", "l"); err == nil {
			t.Error("admitted without a majority")
		}
		if n := w.scrape("n1").sum("coordinator_calls_total", `outcome="NO_LEADER"`, `method="Reserve"`); n != 1 {
			t.Errorf("%v refusals", n)
		}
	})
}

// A node shows itself while it looks for the others, and its shards once they are open.
func TestMetricsBeforeTheShardsAreOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.start("n1", withMetrics)
		time.Sleep(time.Second)
		s := w.scrape("n1")
		if s["coordinator_ready"] != 0 || s.sum("coordinator_shard_up") != 0 || s["coordinator_shards"] != 3 ||
			s[`coordinator_node_info{cluster="",node="n1"}`] != 1 {
			t.Errorf("%v", s)
		}
	})
}

// The port takes nothing but GET of its one path.
func TestMetricsPort(t *testing.T) {
	cfg := alone(t)
	cfg.MetricsListen = "127.0.0.1:0"
	n, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.Stop(context.Background()); err != nil {
			t.Error(err)
		}
		if conn, err := net.Dial("tcp", n.MetricsAddress().String()); err == nil {
			_ = conn.Close()
			t.Error("something still listens")
		}
	}()
	<-n.Ready()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	for _, ask := range []struct {
		method, path string
		want         int
	}{
		{http.MethodGet, "/metrics", http.StatusOK},
		{http.MethodHead, "/metrics", http.StatusOK},
		{http.MethodPost, "/metrics", http.StatusMethodNotAllowed},
		{http.MethodGet, "/", http.StatusNotFound},
		{http.MethodGet, "/livez", http.StatusNotFound},
		{http.MethodGet, "/debug/pprof/", http.StatusNotFound},
	} {
		request, err := http.NewRequestWithContext(t.Context(), ask.method, "http://"+n.MetricsAddress().String()+ask.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != ask.want {
			t.Errorf("%s %s: %d", ask.method, ask.path, answer.StatusCode)
		}
	}
	if code, _ := get(t, n, "/metrics"); code != http.StatusNotFound {
		t.Errorf("/metrics on the other port: %d", code)
	}
}

// What is read while a node stops, and after that, is what there was at its end.
func TestMetricsOfANodeThatHasStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		n := w.start("n1", func(c *Config) { c.Peers = nil; withMetrics(c) })
		w.serving()
		w.admits("k", "n1", "n1")
		before := w.scrape("n1")
		w.stop("n1")
		answer := httptest.NewRecorder()
		n.metricsHandler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		after := parse(t, answer.Body.String())
		if answer.Code != http.StatusOK || after["coordinator_ready"] != 0 || after.sum("coordinator_shard_up") != 3 ||
			after.sum("coordinator_shard_is_leader") != 0 || after.sum("coordinator_log_entries") != 0 {
			t.Errorf("%d, %v", answer.Code, after)
		}
		for _, metric := range []string{"coordinator_records", "coordinator_commands_proposed_total", "coordinator_calls_total"} {
			if before.sum(metric) == 0 || after.sum(metric) != before.sum(metric) {
				t.Errorf("%s is %v, and was %v", metric, after.sum(metric), before.sum(metric))
			}
		}
	})
}
