package admission_test

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// BenchmarkDecide measures one decision, by what it comes to.
func BenchmarkDecide(b *testing.B) {
	id := admission.Identity{Namespace: "default", Principal: "account-0123456789", Operation: "POST /v1/orders", Key: "7d9f2c1e-5b3a-4c8e-9f60-000000000001"}
	reserve := admission.Reserve{
		Identity: id, Attempt: attempt("first"), Fingerprint: make([]byte, 32), WantedUntil: admission.Never,
		PendingTTL: admission.PendingTTLDefault, Retention: admission.RetentionDefault, Owner: "worker-17",
	}
	other := reserve
	other.Attempt = attempt("second")
	at := func(now time.Duration) admission.Instant {
		return admission.Instant{Now: admission.Time(0).Add(now), WallNanos: int64(now)}
	}

	granted := admission.Decide(admission.View{}, at(time.Second), reserve)
	commit := admission.Commit{Identity: id, Token: granted.Answer.Token, Response: admission.Response{Bytes: 100, Stored: make([]byte, 100)}}
	pending := admission.View{Record: granted.Record, Counter: granted.Counter, NamespaceRecords: 1}
	committed := admission.Decide(pending, at(2*time.Second), commit)
	done := admission.View{Record: committed.Record, Counter: committed.Counter, NamespaceRecords: 1}

	for _, one := range []struct {
		name    string
		view    admission.View
		command admission.Command
		outcome admission.Outcome
		changes bool
	}{
		{"granted", admission.View{}, reserve, admission.OutcomeGranted, true},
		{"repeated", pending, reserve, admission.OutcomeGranted, false},
		{"pending", pending, other, admission.OutcomePending, false},
		{"commit", pending, commit, admission.OutcomeNone, true},
		{"committed", done, other, admission.OutcomeCommitted, false},
	} {
		b.Run(one.name, func(b *testing.B) {
			var got admission.Decision
			b.ReportAllocs()
			for b.Loop() {
				got = admission.Decide(one.view, at(3*time.Second), one.command)
			}
			if got.Answer.Refusal != admission.None || got.Answer.Outcome != one.outcome || (got.Record != nil) != one.changes {
				b.Fatalf("it came to %+v", got.Answer)
			}
		})
	}
}

// BenchmarkShard measures the hash that finds an identity's shard.
func BenchmarkShard(b *testing.B) {
	id := admission.Identity{Namespace: "default", Principal: "account-0123456789", Operation: "POST /v1/orders", Key: "7d9f2c1e-5b3a-4c8e-9f60-000000000001"}
	b.ReportAllocs()
	for b.Loop() {
		if id.Shard(3) > 2 {
			b.Fatal("there is no such shard")
		}
	}
}
