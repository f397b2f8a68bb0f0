package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
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
	outside := world{dial: reach, stdin: strings.NewReader(""), stdout: &stdout, stderr: &stderr, environment: os.Environ()}
	code := run(ctx, outside, append([]string{"bench", "-o", "json"}, arguments...))
	var shown benchJSON
	if stdout.Len() > 0 {
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

// committing grants and commits, and calls what is given with the nth commit.
func committing(nth int, then func()) *stub {
	commits := 0
	return &stub{reserve: grantedFor, commit: func() error {
		if commits++; commits == nth {
			then()
		}
		return nil
	}}
}

// paced grants and commits, and takes its time for that.
func paced() *stub {
	return &stub{reserve: grantedFor, commit: func() error { return nil }, pace: 100 * time.Millisecond}
}

// TestBenchEnds has a benchmark end early, with what it has by then: its time is over,
// or it is interrupted.
func TestBenchEnds(t *testing.T) {
	t.Run("by its time", func(t *testing.T) {
		virtually(t, func(t *testing.T) {
			began := time.Now()
			shown, code, said := bench(t, t.Context(), "pairs", "--endpoints", serve(t, paced()), "--timeout", "30s", "--duration", "4s")
			if code != reason.ExitDone || countOf(shown, benchPair) == 0 || shown.Interrupted {
				t.Errorf("exit code %d: %+v", code, shown)
			}
			if !strings.Contains(said, " done, ") {
				t.Errorf("no progress was shown: %q", said)
			}
			if took := time.Since(began); took < 4*time.Second || took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	})
	t.Run("by a signal", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		shown, code, said := bench(t, ctx, "pairs", "--endpoints", serve(t, committing(20, interrupt)), "--timeout", "30s", "--duration", "1h")
		if code != reason.ExitDone || countOf(shown, benchPair) == 0 || !shown.Interrupted {
			t.Errorf("exit code %d: %+v, %s", code, shown, said)
		}
	})
}

// TestBenchOfNobody has a benchmark that does nothing fail as a call does.
func TestBenchOfNobody(t *testing.T) {
	virtually(t, func(t *testing.T) {
		for _, name := range []string{"pairs", "stream", "storm"} {
			_, code, said := bench(t, t.Context(), name, "--endpoints", noStub, "--timeout", "1s", "--count", "3")
			if code != reason.ExitUnavailable || !strings.Contains(said, "cannot connect to "+noStub) {
				t.Errorf("%s: exit code %d: %s", name, code, said)
			}
		}
	})
}

// grantedFor is a grant that holds.
func grantedFor(int) (*coordinatorv1.ReserveResponse, error) {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: "T", Fence: 1, Attempt: 1, Remaining: durationpb.New(time.Minute),
	}}}, nil
}

// TestBenchFailsWhereCallsFailed has a benchmark say in its exit code that calls failed, behind
// the result.
func TestBenchFailsWhereCallsFailed(t *testing.T) {
	leakless(t)
	s := &stub{}
	address := serve(t, s)
	denied, full := reason.Error(reason.PermissionDenied, ""), reason.Error(reason.StorageFull, "")
	for _, test := range []struct {
		name    string
		reserve func(int) (*coordinatorv1.ReserveResponse, error)
		commit  error
		exit    int
		said    string
		errors  map[string]uint64
	}{
		{"one of ten", func(call int) (*coordinatorv1.ReserveResponse, error) {
			if call == 4 {
				return nil, denied
			}
			return grantedFor(call)
		}, nil, reason.ExitNotAllowed, "1 of 10 failed, the first of them so: ", map[string]uint64{"PERMISSION_DENIED": 1}},
		{"for two reasons", func(call int) (*coordinatorv1.ReserveResponse, error) {
			switch call {
			case 4:
				return nil, denied
			case 5:
				return nil, full
			}
			return grantedFor(call)
		}, nil, reason.ExitFailure, "2 of 10 failed", map[string]uint64{"PERMISSION_DENIED": 1, "STORAGE_FULL": 1}},
		{"every commit", grantedFor, reason.Error(reason.CommitConflict, ""), reason.ExitNotOwner, "10 of 10 failed", map[string]uint64{"COMMIT_CONFLICT": 10}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s.mu.Lock()
			s.reserve, s.requests, s.commit = test.reserve, nil, func() error { return test.commit }
			s.mu.Unlock()
			shown, code, said := bench(t, t.Context(), "pairs", "--endpoints", address, "--count", "10", "--callers", "1", "--no-progress")
			if code != test.exit || !strings.Contains(said, test.said) {
				t.Errorf("exit code %d, not %d: %s", code, test.exit, said)
			}
			got := map[string]uint64{}
			for _, one := range shown.Errors {
				got[one.Reason] = one.Count
			}
			if countOf(shown, benchReserve) == 0 || !maps.Equal(got, test.errors) {
				t.Errorf("%+v", shown)
			}
		})
	}
}

// TestBenchFindsABreach has a storm meet a coordinator that grants a committed key again, or has
// granted it to another.
func TestBenchFindsABreach(t *testing.T) {
	leakless(t)
	s := &stub{}
	address := serve(t, s)
	refused := &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Committed{Committed: &coordinatorv1.Committed{}}}
	for name, broken := range map[string]*coordinatorv1.ReserveResponse{
		"granted":  nil,
		"pending":  {Outcome: &coordinatorv1.ReserveResponse_Pending{Pending: &coordinatorv1.Pending{RetryAfter: durationpb.New(time.Second)}}},
		"in doubt": {Outcome: &coordinatorv1.ReserveResponse_InDoubt{InDoubt: &coordinatorv1.InDoubt{}}},
	} {
		for _, after := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s after %d", name, after), func(t *testing.T) {
				s.mu.Lock()
				s.requests, s.commit = nil, func() error { return nil }
				s.reserve = func(call int) (*coordinatorv1.ReserveResponse, error) {
					switch {
					case call == 1: // what the storm commits
						return grantedFor(call)
					case call <= after || call > after+1:
						return refused, nil
					case broken == nil:
						return grantedFor(call)
					}
					return broken, nil
				}
				s.mu.Unlock()
				shown, code, said := bench(t, t.Context(), "storm", "--endpoints", address, "--count", "1000000", "--callers", "1", "--duration", "1m", "--no-progress")
				if code != reason.ExitFailure || !strings.Contains(said, `"reason":"ADMITTED_TWICE"`) || !strings.Contains(said, "broke its promise") {
					t.Errorf("exit code %d: %s", code, said)
				}
				if got := countOf(shown, benchRefused); got != uint64(after-1) {
					t.Errorf("it went on: %+v", shown)
				}
			})
		}
	}
}

// TestBenchPreparesWithinItsTime ends what a storm commits first.
func TestBenchPreparesWithinItsTime(t *testing.T) {
	t.Run("by its time", func(t *testing.T) {
		virtually(t, func(t *testing.T) {
			_, code, said := bench(t, t.Context(), "storm", "--endpoints", serve(t, paced()), "--keys", "1000000", "--duration", "3s")
			if code != reason.ExitFailure || !committedSoFar(said, `the time of --duration \(3s\) was over when (\d+) of 1000000 keys were committed`) {
				t.Errorf("exit code %d: %s", code, said)
			}
		})
	})
	t.Run("by a signal", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		// By then somebody of the 16 callers commits for the second time.
		_, code, said := bench(t, ctx, "storm", "--endpoints", serve(t, committing(20, interrupt)), "--keys", "1000000", "--duration", "1h")
		if code != reason.ExitFailure || !committedSoFar(said, `interrupted when (\d+) of 1000000 keys were committed`) {
			t.Errorf("exit code %d: %s", code, said)
		}
	})
	t.Run("where nobody is", func(t *testing.T) {
		virtually(t, func(t *testing.T) {
			_, code, said := bench(t, t.Context(), "storm", "--endpoints", noStub, "--duration", "1s")
			want := "the time of --duration (1s) was over when 0 of 1 keys were committed: cannot connect to " + noStub + ": connection refused"
			if code != reason.ExitFailure || !strings.Contains(said, want) {
				t.Errorf("exit code %d: %s", code, said)
			}
		})
	})
}

// committedSoFar reports whether it was said that some keys were committed, and not all.
func committedSoFar(said, pattern string) bool {
	found := regexp.MustCompile(pattern).FindStringSubmatch(said)
	return found != nil && found[1] != "0" && found[1] != "1000000"
}

// TestBenchOfWhatFails shows the result where nothing succeeded: how much failed, for which reason. Only
// where no node was reached there is none.
func TestBenchOfWhatFails(t *testing.T) {
	leakless(t)
	address := serve(t, &stub{reserve: failed(reason.Error(reason.StorageFull, ""))})
	for _, name := range []string{"pairs", "stream"} {
		shown, code, said := bench(t, t.Context(), name, "--endpoints", address, "--count", "10", "--no-progress")
		want := []benchErrorJSON{{"STORAGE_FULL", 10}}
		if code != reason.ExitRefused || !slices.Equal(shown.Errors, want) || shown.Calls == nil || !strings.Contains(said, "10 of 10 failed, the first of them so: ") {
			t.Errorf("%s: exit code %d: %+v, %s", name, code, shown, said)
		}
	}
	code, stdout, _ := command(t, "bench", "pairs", "--endpoints", address, "--count", "10", "--no-progress")
	if want := "FAILED        COUNT\nSTORAGE_FULL  10\n"; code != reason.ExitRefused || stdout != want {
		t.Errorf("exit code %d: %q", code, stdout)
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
