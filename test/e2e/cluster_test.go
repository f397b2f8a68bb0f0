package e2e

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/test/process"
)

// TestAddressOfAnotherCluster: a node advertises an address at which another cluster
// answers, and so do the endpoints: whichever way a client comes to both, what it has done
// in one cluster is not admitted by the other.
func TestAddressOfAnotherCluster(t *testing.T) {
	other := process.Start(t, programs, 1)
	misled := process.Start(t, programs, 1, "--advertise", other.Endpoints()[0])
	for name, endpoints := range map[string][]string{
		"advertised":             misled.Endpoints(),
		"among the endpoints":    append(misled.Endpoints(), other.Endpoints()...),
		"first of the endpoints": append(other.Endpoints(), misled.Endpoints()...),
	} {
		t.Run(name, func(t *testing.T) {
			c, err := client.Dial(endpoints)
			must(t, err)
			defer c.Close()
			do := func(key string) (ran bool) {
				t.Helper()
				owned, err := c.Reserve(t.Context(), client.Identity{Operation: name, Key: key})
				var done *client.CommittedError
				switch {
				case errors.As(err, &done):
					return false
				case err != nil:
					t.Errorf("%s: %v", key, err)
					return false
				}
				if err := owned.Commit(t.Context(), client.Response{Code: 200}); err != nil {
					t.Errorf("%s: %v", key, err)
				}
				return true
			}
			for i := range 20 {
				if key := fmt.Sprint("alone-", i); !do(key) || do(key) || do(key) {
					t.Errorf("%s did not run once", key)
				}
			}
			// Over sessions as well.
			var running sync.WaitGroup
			for caller := range 64 {
				running.Go(func() {
					for i := range 10 {
						if key := fmt.Sprint("among many-", caller, "-", i); !do(key) || do(key) {
							t.Errorf("%s did not run once", key)
						}
					}
				})
			}
			running.Wait()
		})
	}
}
