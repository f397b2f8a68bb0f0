package actor

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/alarm"
	"github.com/atmostonce/coordinator/internal/store"
)

// within is the request for a key in a namespace that may have so many records.
func within(records uint64, name string) Request {
	request := brief(name)
	command, _ := request.Command.(admission.Reserve)
	command.RecordsMax = records
	request.Command = command
	return request
}

// Every call sees a record that is over as gone, whether or not it has been reclaimed: so
// does one that counts them.
func TestWhatIsOverDoesNotCountAgainstTheQuota(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		lazy := store.Config{FlushInterval: 10 * time.Second} // reclaims are put off meanwhile
		s := openShardOn(t, dir, lazy, func(c *Config) { c.GatheredBytesMax = 256 << 10 })
		defer s.close()
		const quota = 3 * alarm.ReclaimMax
		for i := range quota {
			s.mustSubmit(within(quota, fmt.Sprint("k", i)))
		}
		if full := s.mustSubmit(within(quota, "one more")); full.Answer.Refusal != admission.QuotaExceeded {
			t.Fatalf("%v within the quota", full.Answer.Refusal)
		}
		time.Sleep(3 * time.Second)
		if overdue, _ := s.group.Store().Overdue(); overdue < quota {
			t.Fatalf("%d of %d records are overdue: nothing was put off", overdue, quota)
		}
		for i := range quota {
			if got := s.mustSubmit(within(quota, fmt.Sprint("n", i))); got.Answer.Outcome != admission.OutcomeGranted {
				t.Fatalf("the %d. of %d: %v", i+1, quota, got.Answer.Refusal)
			}
		}
		if full := s.mustSubmit(within(quota, "one more")); full.Answer.Refusal != admission.QuotaExceeded {
			t.Errorf("%v within the quota", full.Answer.Refusal)
		}
	})
}
