package cluster_test

import (
	"bytes"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/cluster"
)

// A storm of retries of one committed key costs the log nothing, whichever node the
// retries come in at.
func TestRetryStormLeavesTheLogAlone(t *testing.T) {
	const callers, rounds = 256, 4
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: oneShard})
		c.Latency(time.Millisecond)
		response := &coordinatorv1.Response{Code: 201, ContentType: "text/plain", Body: bytes.Repeat([]byte("done "), 1000)}
		answer, err := reserve(t.Context(), c, "n1", &coordinatorv1.ReserveRequest{Identity: identity("k"), AttemptId: newAttempt()})
		if err != nil || answer.GetGranted() == nil {
			t.Fatalf("%v, %v", answer, err)
		}
		if _, err := service(c, "n2").Commit(t.Context(), &coordinatorv1.CommitRequest{
			Identity: identity("k"), Token: answer.GetGranted().GetToken(), Response: response,
		}); err != nil {
			t.Fatal(err)
		}
		lasts := func() (lasts []uint64) {
			for _, name := range c.Names {
				_, _, last := c.Replica(name, 0).Group().Indexes()
				lasts = append(lasts, last)
			}
			return lasts
		}
		time.Sleep(time.Second) // for the followers to have it all
		before, began := lasts(), time.Now()
		var storm sync.WaitGroup
		for i := range callers {
			storm.Go(func() {
				for round := range rounds {
					answer, err := reserve(t.Context(), c, c.Names[(i+round)%3], &coordinatorv1.ReserveRequest{
						Identity: identity("k"), AttemptId: newAttempt(), Wait: window(time.Duration(i%2) * time.Second),
					})
					if err != nil || !bytes.Equal(answer.GetCommitted().GetResponse().GetBody(), response.GetBody()) {
						t.Errorf("caller %d: %v, %v", i, answer, err)
						return
					}
				}
			})
		}
		storm.Wait()
		took := time.Since(began)
		for i, last := range lasts() {
			if last != before[i] {
				t.Errorf("the log of %s went from %d to %d", c.Names[i], before[i], last)
			}
		}
		t.Logf("%d calls in %v, the log ends at %d as before", callers*rounds, took, before[0])
	})
}
