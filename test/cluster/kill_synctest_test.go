package cluster_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/cluster"
)

// A node that was killed finds its files as they were at that moment, has everything that
// was acknowledged, and agrees with the others.
func TestKilledNodeFindsItsFilesAsTheyWere(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Dir: dir, Change: oneShard})
		c.Latency(time.Millisecond)
		killed := c.AwaitLeader(0)
		answer, err := reserve(t.Context(), c, killed, &coordinatorv1.ReserveRequest{Identity: identity("k"), AttemptId: newAttempt()})
		if err != nil || answer.GetGranted() == nil {
			t.Fatalf("%v, %v", answer, err)
		}
		synctest.Wait()
		state := filepath.Join(dir, killed, "shards", "0000", "state.db")
		before, err := os.ReadFile(state)
		if err != nil {
			t.Fatal(err)
		}
		c.Kill(killed)
		// Whatever is left of it goes on writing.
		late := filepath.Join(dir, killed, "late")
		if err := os.WriteFile(late, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if after, err := os.ReadFile(state); err != nil || string(after) == string(before) {
			t.Errorf("it has written nothing since, so that nothing is to be undone: %v", err)
		}
		c.KeepState(killed) // looks at the files as well
		if again, err := os.ReadFile(state); err != nil || string(again) != string(before) {
			t.Errorf("the state file is not what it was: %v", err)
		}
		if _, err := os.Stat(late); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what was written after the kill is there: %v", err)
		}
		c.StartNode(killed)
		c.Serving()
		again, err := reserve(t.Context(), c, killed, &coordinatorv1.ReserveRequest{Identity: identity("k"), AttemptId: newAttempt()})
		if err != nil || again.GetPending() == nil {
			t.Errorf("%v, %v", again, err)
		}
		c.Agree()
	})
}
