package scenario_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/model"
	"github.com/atmostonce/coordinator/test/scenario"
)

func all(t *testing.T) []scenario.Scenario {
	t.Helper()
	scenarios, err := scenario.All()
	if err != nil {
		t.Fatal(err)
	}
	return scenarios
}

func play(s scenario.Scenario) error {
	runner := scenario.Runner{Target: scenario.NewPure(model.Rules{Shard: model.New()})}
	return runner.Run(context.Background(), s)
}

// The second model is held to the same scripts as the rules.
func TestModelPlaysAllScenarios(t *testing.T) {
	scenarios := all(t)
	if len(scenarios) < 40 {
		t.Fatalf("only %d scenarios were read", len(scenarios))
	}
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			if err := play(s); err != nil {
				t.Error(err)
			}
		})
	}
}

// Every single expectation of every scenario is bent, one at a time; each time the
// run must fail at just that step.
func TestBentExpectationsFail(t *testing.T) {
	count := 0
	for _, s := range all(t) {
		for j := range s.Steps {
			for _, bend := range bends(s.Steps[j].Expect) {
				whole := s.Steps[j].Expect
				s.Steps[j].Expect = bent(whole, bend)
				var failed *scenario.StepError
				err := play(s)
				s.Steps[j].Expect = whole
				if !errors.As(err, &failed) || failed.Step != j+1 {
					t.Errorf("%q step %d: %s: not noticed there: %v", s.Name, j+1, bend.name, err)
				}
				count++
			}
		}
	}
	if count < 400 {
		t.Errorf("only %d expectations were bent", count)
	}
}

type bend struct {
	name  string
	apply func(*scenario.Expect)
}

// bent returns a bent copy of an expectation, which is left as it is.
func bent(whole *scenario.Expect, b bend) *scenario.Expect {
	e := *whole
	e.Attempt, e.PreviousReason = copied(e.Attempt), copied(e.PreviousReason)
	e.Repeated, e.Late = copied(e.Repeated), copied(e.Late)
	e.Remaining, e.Response = copied(e.Remaining), copied(e.Response)
	b.apply(&e)
	return &e
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	c := *p
	return &c
}

func bends(e *scenario.Expect) []bend {
	if e == nil {
		return nil
	}
	var out []bend
	add := func(given bool, name string, apply func(*scenario.Expect)) {
		if given {
			out = append(out, bend{name, apply})
		}
	}
	add(e.Reason != "", "another reason", func(e *scenario.Expect) { e.Reason = "OVERLOADED" })
	add(e.Reason != "", "no refusal", func(e *scenario.Expect) { e.Reason, e.OK = "", true })
	add(e.OK, "refused", func(e *scenario.Expect) { e.Reason, e.OK = "RESERVATION_LOST", false })
	add(e.Outcome != "", "another outcome", func(e *scenario.Expect) {
		e.Outcome = map[bool]string{true: "pending", false: "granted"}[e.Outcome == "granted"]
	})
	add(e.State != "", "another state", func(e *scenario.Expect) {
		e.State = map[bool]string{true: "LAPSED", false: "PENDING"}[e.State == "PENDING"]
	})
	add(e.Attempt != nil, "another attempt", func(e *scenario.Expect) { *e.Attempt++ })
	add(e.Previous != "", "another previous", func(e *scenario.Expect) {
		e.Previous = map[bool]string{true: "lapsed", false: "none"}[e.Previous == "none"]
	})
	add(e.PreviousReason != nil, "another previous reason", func(e *scenario.Expect) { *e.PreviousReason += "!" })
	add(e.Repeated != nil, "repeated", func(e *scenario.Expect) { *e.Repeated = !*e.Repeated })
	add(e.Late != nil, "late", func(e *scenario.Expect) { *e.Late = !*e.Late })
	add(e.Remaining != nil, "more remaining", func(e *scenario.Expect) { *e.Remaining++ })
	add(e.Remaining != nil, "less remaining", func(e *scenario.Expect) { *e.Remaining-- })
	add(e.Response != nil, "another code", func(e *scenario.Expect) { e.Response.Code++ })
	add(e.Response != nil, "another body", func(e *scenario.Expect) { e.Response.Body += "x" })
	add(e.Response != nil, "another content type", func(e *scenario.Expect) { e.Response.ContentType = "text/plain" })
	add(e.Response != nil, "another header", func(e *scenario.Expect) { e.Response.Headers = [][2]string{{"a", "b"}} })
	add(e.SameGrant != "", "above instead of same", func(e *scenario.Expect) { e.FenceAbove, e.SameGrant = e.SameGrant, "" })
	add(e.FenceAbove != "", "same instead of above", func(e *scenario.Expect) { e.SameGrant, e.FenceAbove = e.FenceAbove, "" })
	return out
}

// A waiter that is never woken must be noticed as well.
func TestFinishIsBounded(t *testing.T) {
	err := play(load(t, `
- name: nobody comes
  steps:
    - reserve: {key: k, attempt: a}
      expect: {outcome: granted}
    - start: {reserve: {key: k, attempt: b, wait: 30s}, as: w}
    - finish: {of: w, within: 29s}
      expect: {outcome: pending}
`)[0])
	if err == nil || !strings.Contains(err.Error(), "still waiting") {
		t.Errorf("got %v", err)
	}
}

// What only a waiter meets: its record changes by itself while it waits.
func TestWaiterIsDecidedAtTheDeadline(t *testing.T) {
	err := play(load(t, `
- name: a lapse wakes the first waiter
  steps:
    - reserve: {key: k, attempt: a, pending_ttl: 5s}
      expect: {outcome: granted}
    - start: {reserve: {key: k, attempt: b, wait: 30s, pending_ttl: 10s}, as: w1}
    - start: {reserve: {key: k, attempt: c, wait: 20s, pending_ttl: 10s}, as: w2}
    - finish: {of: w1, within: 5s}
      expect: {outcome: granted, attempt: 2, previous: lapsed, remaining: 10s}
    - finish: {of: w2, within: 10s}
      expect: {outcome: granted, attempt: 3, previous: lapsed}
`)[0])
	if err != nil {
		t.Error(err)
	}
}

func load(t *testing.T, text string) []scenario.Scenario {
	t.Helper()
	scenarios, err := scenario.Load(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return scenarios
}

func TestLoadIsStrict(t *testing.T) {
	step := func(text string) string { return "- name: n\n  steps:\n    - " + text + "\n" }
	const granted = "\n      expect: {outcome: granted}"
	for name, text := range map[string]string{
		"not a list":              "name: n",
		"unknown field":           step("reserve: {key: k, attempt: a}" + granted + "\n- nam: x"),
		"unknown scenario field":  "- name: n\n  alive: true\n  steps: []",
		"unknown step":            step("reserver: {key: k, attempt: a}" + granted),
		"unknown call field":      step("reserve: {key: k, attempt: a, ttl: 1s}" + granted),
		"unknown expect field":    step("reserve: {key: k, attempt: a}\n      expect: {outcome: granted, attempts: 1}"),
		"unknown response field":  step("commit: {key: k, token: malformed, response: {status: 1}}\n      expect: ok"),
		"call without expect":     step("reserve: {key: k, attempt: a}"),
		"empty expect":            step("reserve: {key: k, attempt: a}\n      expect: \"\""),
		"two expectations":        step("get: {key: k}\n      expect: {ok: true, state: PENDING}"),
		"expectation of nothing":  step("get: {key: k}\n      expect: {late: true}"),
		"advance with expect":     step("advance: 1s\n      expect: ok"),
		"back in time":            step("advance: -1s"),
		"two calls":               step("get: {key: k}\n      purge: {key: k}\n      expect: ok"),
		"no call":                 step("expect: ok"),
		"bad duration":            step("advance: 1 second"),
		"commit without response": step("commit: {key: k, token: malformed}\n      expect: ok"),
		"applied and no response": step("resolve: {key: k, applied: true}\n      expect: ok"),
		"response and no applied": step("resolve: {key: k, applied: false, response: {code: 1}}\n      expect: ok"),
		"start without wait":      step("start: {reserve: {key: k, attempt: a}, as: w}"),
		"finish without within":   step("finish: {of: w}\n      expect: ok"),
		"no steps":                "- name: n",
		"the same name twice":     step("advance: 1s") + step("advance: 1s"),
	} {
		if _, err := scenario.Load(strings.NewReader(text)); err == nil {
			t.Errorf("%s: was read", name)
		}
	}
}

// A label that nobody gave is an error of the script and not an answer.
func TestUnknownLabels(t *testing.T) {
	for _, text := range []string{
		"commit: {of: r, response: {code: 1}}\n      expect: ok",
		"commit: {key: k, token: another, response: {code: 1}}\n      expect: ok",
		"commit: {key: k, response: {code: 1}}\n      expect: ok",
		"release: {token: malformed}\n      expect: ok",
		"extend: {of: r}\n      expect: ok",
		"resolve: {key: k, revision_of: seen, applied: false}\n      expect: ok",
		"purge: {key: k, revision_of: seen}\n      expect: ok",
		"purge: {revision_of: seen}\n      expect: ok",
		"finish: {of: w, within: 1s}\n      expect: ok",
		"get: {of: r}\n      expect: ok",
		"reserve: {key: k}\n      expect: {outcome: granted}",
		"reserve: {key: k, attempt: a, on_lapse: never}\n      expect: {outcome: granted}",
		"reserve: {key: k, attempt: a}\n      expect: {outcome: granted, same_grant: r}",
		"reserve: {key: k, attempt: a}\n      expect: {outcome: granted, fence_above: r}",
	} {
		if err := play(load(t, "- name: n\n  steps:\n    - "+text+"\n")[0]); err == nil {
			t.Errorf("%s: was played", text)
		}
	}
}

func TestNamespacesAreMapped(t *testing.T) {
	rules := model.Rules{Shard: model.New()}
	for i := range 2 {
		runner := scenario.Runner{
			Target:    scenario.NewPure(rules),
			Namespace: func(n string) string { return fmt.Sprintf("%s-%d", n, i) },
		}
		if err := runner.Run(context.Background(), all(t)[0]); err != nil {
			t.Errorf("run %d: %v", i, err)
		}
	}
}

func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	for text, want := range map[string]time.Duration{
		"0s": 0, "-1s": -time.Second, "1ns": 1, "4999999999ns": 5*time.Second - 1, "59m29s": 59*time.Minute + 29*time.Second,
		"30d": 30 * day, "292y": 292 * 365 * day, "1y2d3h": 367*day + 3*time.Hour, "1.5s": 1500 * time.Millisecond,
	} {
		if got, err := scenario.ParseDuration(text); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "1", "s", "293y", "292y200d", "-", "+1s", "1s2d", "1.5d", "1 s", "1e3s", "99999999999999999999d"} {
		if got, err := scenario.ParseDuration(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

func TestLabels(t *testing.T) {
	if first, again := scenario.AttemptOf("a"), scenario.AttemptOf("a"); first != again || first == scenario.AttemptOf("b") {
		t.Error("the same label must be the same attempt, and only the same")
	}
	if scenario.FingerprintOf("") != nil || string(scenario.FingerprintOf("F1")) == string(scenario.FingerprintOf("F2")) {
		t.Error("no label is no fingerprint, and two labels are two")
	}
}
