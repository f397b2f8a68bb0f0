package client_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/atmostonce/coordinator/client"
)

// Whoever passes on what a call of its own came with, as a proxy does, passes on what its caller has
// put there: that does not say which cluster a call is for, nor that it was forwarded.
func TestMetadataThatIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := start(t, 3)
		own := dial(t, nodes)
		granted(t, own, "first")
		for name, option := range map[string]client.DialOption{"sessions": client.WithSessions(true), "none": client.WithSessions(false)} {
			c := dial(t, nodes, option)
			for _, pairs := range [][]string{
				{"coordinator-cluster", strings.Repeat("0f", 16)}, {"coordinator-cluster", ""}, {"Coordinator-Forwarded", "1"},
			} {
				ctx := metadata.AppendToOutgoingContext(t.Context(), append(pairs, "tenant", "t")...)
				for _, key := range []string{"a", "b", "c"} { // of several shards
					if _, err := c.Reserve(ctx, id(name+strings.Join(pairs, "")+key)); err != nil {
						t.Errorf("%s, %v: %v", name, pairs, err)
					}
				}
			}
		}
		// Else nodes of another cluster would carry out what is not for them.
		stranger := dial(t, nodes, client.WithCluster(strings.Repeat("0f", 16)), client.WithCallTimeout(time.Second))
		ctx := metadata.AppendToOutgoingContext(t.Context(), "coordinator-cluster", "")
		_, err := stranger.Reserve(ctx, id("stranger"))
		want(t, err, client.ErrUnavailable)
		_, err = own.Get(t.Context(), id("stranger"))
		want(t, err, client.ErrNotFound)
	})
}
