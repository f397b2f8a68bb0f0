package main

import (
	"context"
	"strings"
	"testing"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// ListShards gives out the shards with the leaders that the stub has.
func (s *stub) ListShards(context.Context, *coordinatorv1.ListShardsRequest) (*coordinatorv1.ListShardsResponse, error) {
	answer := &coordinatorv1.ListShardsResponse{}
	for i, leader := range s.leaders {
		answer.Shards = append(answer.Shards, &coordinatorv1.Shard{Shard: uint32(i), Leader: leader})
	}
	return answer, nil
}

// GetShard gives out one of them.
func (s *stub) GetShard(_ context.Context, request *coordinatorv1.GetShardRequest) (*coordinatorv1.GetShardResponse, error) {
	return &coordinatorv1.GetShardResponse{Shard: &coordinatorv1.Shard{Shard: request.GetShard(), Leader: s.leaders[request.GetShard()]}}, nil
}

// A table in which shards have no leader, as right after a start, is not left without a
// word. It is no failure, and what reads JSON gets nothing else.
func TestShardsWithoutALeaderAreExplained(t *testing.T) {
	leakless(t)
	const rest = ", and shows what it has itself: calls on keys of such a shard wait, and then fail with NO_LEADER. " +
		"After a start that passes within seconds; if it does not, `coordctl status` says what is wrong\n"
	for _, test := range []struct {
		leaders   []string
		arguments string
		want      string
	}{
		{[]string{"n1", "n2"}, "shards", ""},
		{[]string{"n1", ""}, "shards", "coordctl: the answering node knows no leader of 1 of 2 shards" + rest},
		{[]string{"", ""}, "shards", "coordctl: the answering node knows no leader of 2 of 2 shards" + rest},
		{[]string{"", ""}, "shards -o json", ""},
		{[]string{"n1"}, "shard 0", ""},
		{[]string{""}, "shard 0", "coordctl: the answering node knows no leader of the shard" + rest},
		{[]string{""}, "shard 0 -o json", ""},
	} {
		address := serve(t, &stub{leaders: test.leaders})
		code, stdout, stderr := command(t, append(strings.Fields(test.arguments), "--endpoints", address)...)
		if code != 0 || stdout == "" || stderr != test.want {
			t.Errorf("%s of %q: exit code %d, stdout %q, stderr %q, want %q", test.arguments, test.leaders, code, stdout, stderr, test.want)
		}
	}
}
