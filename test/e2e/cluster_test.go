package e2e

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
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

// A client that is told its cluster takes no other's word, whichever answers first; nothing
// is granted there, and the error says who has answered.
func TestAClientIsToldItsCluster(t *testing.T) {
	other, own := process.Start(t, programs, 1), process.Start(t, programs, 1)
	status, err := coordinatorv1.NewAdminServiceClient(own.Nodes[0].Conn()).ClusterStatus(t.Context(), &coordinatorv1.ClusterStatusRequest{})
	must(t, err)
	id := status.GetClusterId()
	for range 4 { // who is asked first is drawn
		c, err := client.Dial(append(other.Endpoints(), own.Endpoints()...), client.WithCluster(id))
		must(t, err)
		owned, err := c.Reserve(t.Context(), client.Identity{Operation: "op", Key: rand.Text()})
		must(t, err)
		must(t, owned.Commit(t.Context(), client.Response{Code: 200}))
		must(t, c.Close())
	}
	result, err := programs.Control(time.Minute, append(own.Endpoints(), other.Endpoints()...), "status")
	if must(t, err); result.Code != 11 || !strings.Contains(result.Stdout, "At "+other.Endpoints()[0]+" another cluster answers") {
		t.Errorf("status with the endpoints of two clusters ended with %d: %s%s", result.Code, result.Stdout, result.Stderr)
	}
	c, err := client.Dial(other.Endpoints(), client.WithCluster(id), client.WithCallTimeout(time.Second))
	must(t, err)
	defer c.Close()
	if _, err := c.Reserve(t.Context(), client.Identity{Operation: "op", Key: "k"}); !errors.Is(err, client.ErrUnavailable) ||
		errors.Is(err, client.ErrUnknown) || !strings.Contains(err.Error(), "this client is for cluster "+id) {
		t.Errorf("by another cluster alone: %v", err)
	}
	whichever, err := client.Dial(other.Endpoints())
	must(t, err)
	defer whichever.Close()
	if _, err := whichever.Get(t.Context(), client.Identity{Operation: "op", Key: "k"}); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("it was granted there: %v", err)
	}
}
