package lease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// What an owner is told that it may ask for is what the rules take, in the same words.
func TestLimitsAreTheContracts(t *testing.T) {
	same := func(field, value string, here error, there *admission.Violation) {
		t.Helper()
		if got, want := fmt.Sprint(here), "<nil>"; there != nil {
			if want = there.Detail; got != want || there.Field != field {
				t.Errorf("%s %s: %q, the rules say of %s %q", field, value, got, there.Field, want)
			}
		} else if got != want {
			t.Errorf("%s %s: %q, and the rules take it", field, value, got)
		}
	}
	fine := func() admission.Reserve {
		return admission.Reserve{
			Identity: admission.Identity{Namespace: "n", Key: "k"},
			Attempt:  admission.AttemptID{1}, PendingTTL: time.Minute, Retention: time.Hour, OnLapse: admission.Reopen,
		}
	}
	if v := fine().Validate(); v != nil {
		t.Fatal(v)
	}
	const day = 24 * time.Hour
	for _, d := range []time.Duration{-1, 0, 1, 100*time.Millisecond - 1, 100 * time.Millisecond, time.Second - 1, time.Second,
		day, day + 1, 30 * day, 30*day + 1, 1 << 62} {
		ttl, retention := fine(), fine()
		ttl.PendingTTL, retention.Retention = d, d
		same("pending_ttl", d.String(), CheckPendingTTL(d), ttl.Validate())
		same("retention", d.String(), CheckRetention(d), retention.Validate())
	}
	for _, name := range []string{"", "me", strings.Repeat("o", 128), strings.Repeat("o", 129), "\xff", strings.Repeat("\xff", 129)} {
		owner := fine()
		owner.Owner = name
		same("owner", fmt.Sprintf("%q", name), CheckOwner(name), owner.Validate())
	}
	for _, bytes := range []int{0, 64, 65} {
		fingerprint := fine()
		fingerprint.Fingerprint = make([]byte, bytes)
		same("fingerprint", fmt.Sprint(bytes), CheckFingerprint(fingerprint.Fingerprint), fingerprint.Validate())
	}
}
