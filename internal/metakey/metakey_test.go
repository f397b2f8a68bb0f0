package metakey

import (
	"testing"

	"google.golang.org/grpc/metadata"
)

// A cluster is foreign if it was named, once, and is not the one that was given.
func TestForeign(t *testing.T) {
	for _, row := range []struct {
		header         metadata.MD
		given          string
		named, foreign string
	}{
		{nil, "a", "", ""},
		{metadata.Pairs(Cluster, ""), "a", "", ""},
		{metadata.Pairs(Cluster, "b", Cluster, "a"), "a", "", ""},
		{metadata.Pairs(Cluster, "a"), "a", "a", ""},
		{metadata.Pairs(Cluster, "b"), "a", "b", "b"},
		{metadata.Pairs(Cluster, "b"), "", "b", ""},
		{metadata.Pairs("Coordinator-Cluster", "b"), "a", "b", "b"},
	} {
		if named, foreign := Named(row.header), Foreign(row.header, row.given); named != row.named || foreign != row.foreign {
			t.Errorf("%v for %q: %q and %q", row.header, row.given, named, foreign)
		}
	}
}
