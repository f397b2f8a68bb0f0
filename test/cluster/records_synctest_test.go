package cluster_test

import (
	"testing"
	"testing/synctest"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/cluster"
)

// In a shard to which nothing happens the log's clock stands still; how old a record is
// says a listing by live time nonetheless, as Get does, and whether it lapsed as well.
func TestListedRecordsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := cluster.Start(t, cluster.Options{Change: oneShard})
		leader := c.AwaitLeader(0)
		for _, ttl := range []time.Duration{time.Hour, 24 * time.Hour} {
			answer, err := reserve(t.Context(), c, leader, &coordinatorv1.ReserveRequest{
				Identity: identity(ttl.String()), AttemptId: newAttempt(), PendingTtl: window(ttl), OnLapse: coordinatorv1.OnLapse_ON_LAPSE_HOLD,
			})
			if answer.GetGranted() == nil {
				t.Fatal(answer, err)
			}
		}
		for _, after := range []time.Duration{0, 5 * time.Minute, 54 * time.Minute, 2 * time.Minute} {
			time.Sleep(after)
			listed, err := coordinatorv1.NewAdminServiceClient(c.Conn(leader)).ListRecords(t.Context(), &coordinatorv1.ListRecordsRequest{})
			if err != nil || len(listed.GetRecords()) != 2 {
				t.Fatal(listed, err)
			}
			for _, record := range listed.GetRecords() {
				got, err := service(c, leader).Get(t.Context(), &coordinatorv1.GetRequest{Identity: record.GetIdentity()})
				if err != nil {
					t.Fatal(err)
				}
				shown := got.GetRecord()
				if record.GetState() != shown.GetState() ||
					!near(record.GetAge().AsDuration(), shown.GetAge().AsDuration()) || !near(record.GetRemaining().AsDuration(), shown.GetRemaining().AsDuration()) {
					t.Errorf("listed as %v; Get shows %v", record, shown)
				}
			}
		}
	})
}

// near reports whether two times are what calls right after each other may show, on a slow
// network.
func near(a, b time.Duration) bool { return (a - b).Abs() < time.Second }
