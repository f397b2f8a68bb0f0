package main

import (
	"strings"
	"testing"
)

// Which cluster it is, and how it is, is said by a node that belongs to one, wherever among the
// endpoints it comes. One that belongs to none yet, as one does that lost its disk, is said to
// wait, and is no other cluster; nor is there another one in its eyes.
func TestStatusOfAClusterThatANodeWaitsFor(t *testing.T) {
	leakless(t)
	none, own, other := "", "c0ffee", "decaf"
	const (
		foreign = "another cluster answers, "
		waiting = "a node answers that belongs to no cluster yet"
	)
	waits := func() *stub {
		return &stub{node: "n1", cluster: &none, problems: []string{"This node belongs to no cluster yet: it waits to be added."}}
	}
	for name, test := range map[string]struct {
		nodes           []*stub
		shows           string // whose view
		waits, foreign  []int  // of the endpoints
		ownProblemsOnly bool
	}{
		"one that waits is first":    {[]*stub{waits(), {node: "n2", cluster: &own}, {node: "n3", cluster: &own}}, "n2", []int{0}, nil, false},
		"one that waits is last":     {[]*stub{{node: "n2", cluster: &own}, {node: "n3", cluster: &own}, waits()}, "n2", []int{2}, nil, false},
		"two wait":                   {[]*stub{waits(), waits(), {node: "n3", cluster: &own}}, "n3", []int{0, 1}, nil, false},
		"one waits, and one is lost": {[]*stub{waits(), {node: "n2", cluster: &own}, {node: "n3", cluster: &other}}, "n2", []int{0}, []int{2}, false},
		"all wait":                   {[]*stub{waits(), waits()}, "n1", nil, nil, true},
		"it waits alone":             {[]*stub{waits()}, "n1", nil, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			var endpoints []string
			for _, node := range test.nodes {
				endpoints = append(endpoints, serve(t, node))
			}
			code, stdout, stderr := command(t, "status", "--endpoints", strings.Join(endpoints, ","))
			var want []string
			for _, i := range test.waits {
				want = append(want, "At "+endpoints[i]+" "+waiting)
			}
			for _, i := range test.foreign {
				want = append(want, "At "+endpoints[i]+" "+foreign+other)
			}
			if test.ownProblemsOnly {
				want = []string{"This node belongs to no cluster yet: it waits to be added."}
			}
			var problems []string
			for line := range strings.Lines(stdout) {
				if field, value, _ := strings.Cut(line, " "); field == "problem" {
					problems = append(problems, strings.TrimSpace(value))
				}
			}
			if code != 11 || len(problems) != len(want) {
				t.Fatalf("exit code %d, stderr %q, stdout\n%s", code, stderr, stdout)
			}
			for i, problem := range problems {
				if !strings.HasPrefix(problem, want[i]) {
					t.Errorf("problem %d is %q, want %q", i, problem, want[i])
				}
			}
			if !strings.Contains(stdout, "answering node  "+test.shows+"\n") {
				t.Errorf("whose view is it, if not that of %s:\n%s", test.shows, stdout)
			}
		})
	}
}
