package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// replacer is a node that is asked for a replacement.
type replacer struct {
	stub
	clusterID string // "": it belongs to none
	replace   func() (*coordinatorv1.ReplaceMemberResponse, error)
}

func (r *replacer) Members(context.Context, *coordinatorv1.MembersRequest) (*coordinatorv1.MembersResponse, error) {
	if r.clusterID == "" {
		return nil, reason.Error(reason.NoLeader, "this node belongs to no cluster yet")
	}
	return &coordinatorv1.MembersResponse{ClusterId: r.clusterID}, nil
}

func (r *replacer) ReplaceMember(context.Context, *coordinatorv1.ReplaceMemberRequest) (*coordinatorv1.ReplaceMemberResponse, error) {
	return r.replace()
}

const keptTheirs = "; name nodes that kept their data directories with --endpoints"

// A replacement is asked of those that kept theirs: who names the lost node alone, or nobody who
// is there, hears of that in the time of any other call.
func TestAReplacementIsAskedOfTheOthers(t *testing.T) {
	virtually(t, func(t *testing.T) {
		empty := serve(t, &replacer{replace: func() (*coordinatorv1.ReplaceMemberResponse, error) {
			t.Error("an empty node was asked for a replacement")
			return nil, reason.Error(reason.NoLeader, "")
		}})
		for _, test := range []struct {
			arguments []string
			why       string
		}{
			{[]string{"--endpoints", empty}, "NO_LEADER: this node belongs to no cluster yet"},
			{[]string{"--endpoints", noStub, "--timeout", "3s"}, "UNAVAILABLE: cannot connect to " + noStub + ": connection refused"},
		} {
			began := time.Now()
			code, stdout, stderr := command(t, append(test.arguments, "members", "replace", "n2")...)
			if code != reason.ExitUnavailable || stdout != "" || stderr != "coordctl: "+test.why+keptTheirs+"\n" {
				t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
			}
			if took := time.Since(began); took > replaceWithin/2 {
				t.Errorf("it took %v", took)
			}
		}
		other := serve(t, &replacer{clusterID: "c", replace: func() (*coordinatorv1.ReplaceMemberResponse, error) {
			return &coordinatorv1.ReplaceMemberResponse{Incarnation: "fad", Shards: []uint32{0, 1}}, nil
		}})
		code, stdout, stderr := command(t, "--endpoints", noStub+","+other, "members", "replace", "n2")
		if code != reason.ExitDone || !strings.Contains(stdout, "replaced") || stderr != "" {
			t.Errorf("exit code %d, %q, %q", code, stdout, stderr)
		}
	})
}

// A node that does not answer is no mistake of the command line's.
func TestAReplacementByWhoDoesNotAnswer(t *testing.T) {
	leakless(t)
	for exit, err := range map[int]error{
		reason.ExitUnavailable: reason.ViolationOf(reason.InvalidArgument, reason.NodeDoesNotAnswer, "node_id", "names n2, which does not answer (connection refused)"),
		reason.ExitUsage:       reason.Violation(reason.InvalidArgument, "node_id", "names a node that belongs to another cluster"),
	} {
		at := serve(t, &replacer{clusterID: "c", replace: func() (*coordinatorv1.ReplaceMemberResponse, error) { return nil, err }})
		want := strings.Replace(reason.Of(err).Message, "node_id", `NODE "n2"`, 1) // as it is called here
		code, stdout, stderr := command(t, "--endpoints", at, "members", "replace", "n2")
		if code != exit || stdout != "" || stderr != "coordctl: INVALID_ARGUMENT: "+want+"\n" {
			t.Errorf("exit code %d, %q, %q, want %d", code, stdout, stderr, exit)
		}
		code, _, stderr = command(t, "--endpoints", at, "-o", "json", "members", "replace", "n2")
		var shown map[string]errorJSON
		if err := json.Unmarshal([]byte(stderr), &shown); err != nil || code != exit || shown["error"].Message != want || shown["error"].Applied != "no" {
			t.Errorf("exit code %d, %q, %v, want %d", code, stderr, err, exit)
		}
	}
}
