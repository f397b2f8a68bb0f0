package client

import (
	"context"
	"testing"

	"google.golang.org/grpc/metadata"
)

// The first answer that names a cluster decides; an answer that names none says nothing.
func TestTheFirstAnswerNamesTheCluster(t *testing.T) {
	r := &router{}
	sent := func() string {
		outgoing, _ := metadata.FromOutgoingContext(r.naming(context.Background()))
		if named := outgoing.Get(clusterKey); len(named) == 1 {
			return named[0]
		}
		return "nothing"
	}
	for _, step := range []struct {
		header  metadata.MD
		foreign bool
		sent    string
	}{
		{nil, false, ""},
		{metadata.Pairs(shardsKey, "3"), false, ""},
		{metadata.Pairs(clusterKey, ""), false, ""},
		{metadata.Pairs(clusterKey, "a", clusterKey, "b"), false, ""},
		{metadata.Pairs(clusterKey, "a"), false, "a"},
		{nil, false, "a"},
		{metadata.Pairs(clusterKey, "a"), false, "a"},
		{metadata.Pairs(clusterKey, "b"), true, "a"},
		{metadata.Pairs(clusterKey, ""), false, "a"},
	} {
		if got := r.isForeign(step.header); got != step.foreign || sent() != step.sent {
			t.Errorf("%v: foreign %v, and %q is sent; want %v and %q", step.header, got, sent(), step.foreign, step.sent)
		}
	}
}
