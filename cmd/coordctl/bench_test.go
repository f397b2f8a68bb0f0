package main

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/internal/reason"
)

// TestHistogramIsNearTheTruth compares its quantiles with those of the sorted durations.
func TestHistogramIsNearTheTruth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		all := rapid.SliceOfN(rapid.Map(rapid.Int64Range(0, int64(90*time.Minute)), func(n int64) time.Duration {
			return min(time.Duration(n)>>rapid.IntRange(0, 40).Draw(t, "shift"), 1<<histogramPowers-1)
		}), 1, 200).Draw(t, "durations")
		h := &histogram{}
		for _, d := range all {
			h.add(d)
		}
		slices.Sort(all)
		if got := h.count(); got != uint64(len(all)) {
			t.Fatalf("%d were added, it counts %d", len(all), got)
		}
		for _, q := range []float64{0, 0.5, 0.95, 0.99} {
			want := all[int(q*float64(len(all)))]
			if got := h.quantile(q); max(got-want, want-got) > want/64+1 {
				t.Errorf("quantile %v is %v, not %v", q, got, want)
			}
		}
		if got := h.quantile(1); got != all[len(all)-1] {
			t.Errorf("the maximum is %v, not %v", got, all[len(all)-1])
		}
	})
}

func TestHistogramOfWhatDoesNotFit(t *testing.T) {
	h := &histogram{}
	for _, d := range []time.Duration{-time.Second, 0, 300 * time.Hour} {
		h.add(d)
	}
	if h.count() != 3 || h.quantile(0) != 0 || h.quantile(1) != 300*time.Hour {
		t.Errorf("%d, from %v to %v", h.count(), h.quantile(0), h.quantile(1))
	}
}

func BenchmarkHistogram(b *testing.B) {
	h := &histogram{}
	b.ReportAllocs()
	for b.Loop() {
		h.add(rand.N(time.Second))
	}
}

// bench runs a benchmark and returns its result, its exit code and what it says on stderr.
func bench(t *testing.T, ctx context.Context, arguments ...string) (benchJSON, int, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	outside := world{stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, environment: os.Environ()}
	code := run(ctx, outside, append([]string{"bench", "-o", "json"}, arguments...))
	var shown benchJSON
	if code == reason.ExitDone {
		if err := json.Unmarshal(stdout.Bytes(), &shown); err != nil {
			t.Fatalf("%v: %s", err, stdout.String())
		}
	}
	return shown, code, stderr.String()
}

func countOf(shown benchJSON, call string) uint64 {
	for _, one := range shown.Calls {
		if one.Call == call {
			return one.Count
		}
	}
	return 0
}

func TestBench(t *testing.T) {
	address := startNode(t)
	for _, test := range []struct {
		name  string
		flags []string
		call  string
	}{
		{"pairs", []string{"pairs"}, benchPair},
		{"pairs that meet", []string{"pairs", "--keys", "3"}, benchRefused},
		{"stream", []string{"stream", "--callers", "40"}, benchPair},
		{"storm", []string{"storm"}, benchRefused},
		{"storm of many", []string{"storm", "--keys", "50"}, benchRefused},
	} {
		t.Run(test.name, func(t *testing.T) {
			shown, code, said := bench(t, t.Context(), append(test.flags, "--endpoints", address, "--timeout", "30s",
				"--count", "200", "--duration", "1m", "--no-progress")...)
			if code != reason.ExitDone || said != "" {
				t.Fatalf("exit code %d: %s", code, said)
			}
			if total := countOf(shown, benchPair) + countOf(shown, benchRefused); total != 200 || countOf(shown, test.call) == 0 || len(shown.Errors) > 0 {
				t.Errorf("of 200: %+v", shown)
			}
			if shown.Interrupted || !strings.HasPrefix(shown.Operation, benchOperation) {
				t.Errorf("%+v", shown)
			}
		})
	}
}

// TestBenchEnds has a benchmark end early, with what it has by then: its time is over,
// or it is interrupted.
func TestBenchEnds(t *testing.T) {
	address := startNode(t)
	t.Run("by its time", func(t *testing.T) {
		shown, code, said := bench(t, t.Context(), "pairs", "--endpoints", address, "--timeout", "30s", "--duration", "1500ms")
		if code != reason.ExitDone || countOf(shown, benchPair) == 0 || shown.Interrupted {
			t.Errorf("exit code %d: %+v", code, shown)
		}
		if !strings.Contains(said, " done, ") {
			t.Errorf("no progress was shown: %q", said)
		}
	})
	t.Run("by a signal", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		time.AfterFunc(2*time.Second, interrupt)
		shown, code, said := bench(t, ctx, "pairs", "--endpoints", address, "--timeout", "30s", "--duration", "1h")
		if code != reason.ExitDone || countOf(shown, benchPair) == 0 || !shown.Interrupted {
			t.Errorf("exit code %d: %+v, %s", code, shown, said)
		}
	})
}

// TestBenchOfNobody has a benchmark that does nothing fail as a call does.
func TestBenchOfNobody(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	for _, name := range []string{"pairs", "stream", "storm"} {
		_, code, said := bench(t, t.Context(), name, "--endpoints", "127.0.0.1:1", "--timeout", "200ms", "--count", "3")
		if code != reason.ExitUnavailable || !strings.Contains(said, "cannot connect to 127.0.0.1:1") {
			t.Errorf("%s: exit code %d: %s", name, code, said)
		}
	}
}

func TestBenchRefusesFlags(t *testing.T) {
	for _, flags := range [][]string{
		{}, {"nothing"}, {"pairs", "KEY"}, {"pairs", "--callers", "0"}, {"pairs", "--callers", "1025"}, {"pairs", "--duration", "0s"},
		{"pairs", "--duration", "61m"}, {"pairs", "--count", "0"}, {"pairs", "--keys", "-1"}, {"storm", "--keys", "0"},
		{"storm", "--ttl", "999ms"}, {"stream", "--response-bytes", "-1"}, {"stream", "--callers", "1", "--callers", "2"},
	} {
		if _, code, said := bench(t, t.Context(), flags...); code != reason.ExitUsage {
			t.Errorf("%v: exit code %d: %s", flags, code, said)
		}
	}
}
