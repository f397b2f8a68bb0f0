package rpc

import (
	"testing"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/shard"
)

// Nothing of what a node knows of a shard is left out of what it tells.
func TestEveryFieldOfAShardIsTold(t *testing.T) {
	status := shard.Status{
		Shard: 1, Leader: shard.Leader{NodeID: "n1", ClientAddress: "n1:7420", Self: true},
		Term: 2, Applied: 3, Digest: 14, Commit: 4, Last: 5, HasAlarm: true, NextAlarm: time.Second, Clock: 6,
		LogBytes: 7, StateBytes: 8, MailboxDepth: 9, MailboxBytes: 10, Waiters: 11,
		Replicas: []shard.ReplicaStatus{{NodeID: "n2", Address: "n2:7430", Voter: true, Match: 12, Behind: 13, LastContact: time.Second}},
	}
	for state := range status.Records {
		status.Records[state] = uint64(20 + state)
	}
	told := encodeShard(status)
	for _, message := range []protoreflect.Message{
		told.ProtoReflect(), told.GetRecords().ProtoReflect(), told.GetReplicas()[0].ProtoReflect(),
	} {
		fields := message.Descriptor().Fields()
		for i := range fields.Len() {
			if field := fields.Get(i); !message.Has(field) {
				t.Errorf("%s is not told", field.FullName())
			}
		}
	}
	if got := told.GetRecords().GetTombstones(); got != status.Records[admission.StateNone] {
		t.Errorf("%d tombstones", got)
	}
}
