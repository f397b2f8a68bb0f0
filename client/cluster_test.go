package client

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/metadata"

	"github.com/atmostonce/coordinator/internal/metakey"
)

// An id is one of a cluster, or refused.
func TestIDsOfClusters(t *testing.T) {
	good := strings.Repeat("0f", 16)
	for _, id := range []string{"", "x", good[1:], good + "0", strings.ToUpper(good), good[:31] + "g", good[:31] + " "} {
		if c, err := Dial([]string{"127.0.0.1:7420"}, WithCluster(id)); err == nil {
			t.Errorf("%q is taken for an id", id)
			_ = c.Close()
		}
	}
	c, err := Dial([]string{"127.0.0.1:7420"}, WithCluster(good))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if other := c.router.foreign(metadata.Pairs(metakey.Cluster, "another")); other != "another" {
		t.Errorf("the first answer counts: %q", other)
	}
}

// The first answer that names a cluster decides; an answer that names none says nothing.
func TestTheFirstAnswerNamesTheCluster(t *testing.T) {
	r := &router{}
	sent := func() string {
		outgoing, _ := metadata.FromOutgoingContext(r.naming(context.Background()))
		if named := outgoing.Get(metakey.Cluster); len(named) == 1 {
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
		{metadata.Pairs(metakey.Shards, "3"), false, ""},
		{metadata.Pairs(metakey.Cluster, ""), false, ""},
		{metadata.Pairs(metakey.Cluster, "a", metakey.Cluster, "b"), false, ""},
		{metadata.Pairs(metakey.Cluster, "a"), false, "a"},
		{nil, false, "a"},
		{metadata.Pairs(metakey.Cluster, "a"), false, "a"},
		{metadata.Pairs(metakey.Cluster, "b"), true, "a"},
		{metadata.Pairs(metakey.Cluster, ""), false, "a"},
	} {
		if got := r.foreign(step.header) != ""; got != step.foreign || sent() != step.sent {
			t.Errorf("%v: foreign %v, and %q is sent; want %v and %q", step.header, got, sent(), step.foreign, step.sent)
		}
	}
}
