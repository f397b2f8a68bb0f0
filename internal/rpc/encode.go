package rpc

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/shard"
)

// positive is a remaining time that the wire promises to be more than nothing. A
// window that ended while its answer was on the way is over by a nanosecond.
func positive(d time.Duration) *durationpb.Duration {
	return durationpb.New(max(1, d))
}

func encodePrevious(p admission.Previous) *coordinatorv1.Previous {
	encoded := &coordinatorv1.Previous{Reason: p.Reason, Fence: p.Fence}
	switch p.End {
	case admission.EndedReleased:
		encoded.End = coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED
	case admission.EndedLapsed:
		encoded.End = coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED
	default:
		encoded.End = coordinatorv1.PreviousEnd_PREVIOUS_END_NONE
	}
	return encoded
}

// encodeRecord shows a record as it is at a live time, without its response. Attempt
// ids stay here, and so does all else that proves ownership.
func encodeRecord(r *admission.Record, live admission.Time) *coordinatorv1.Record {
	encoded := &coordinatorv1.Record{
		Identity: &coordinatorv1.Identity{
			Namespace: r.Identity.Namespace,
			Principal: r.Identity.Principal,
			Operation: r.Identity.Operation,
			Key:       r.Identity.Key,
		},
		State:         encodeState(r.State),
		Fence:         r.Fence,
		Attempt:       r.Attempt,
		Revision:      r.Revision,
		Fingerprint:   r.Fingerprint,
		OnLapse:       coordinatorv1.OnLapse_ON_LAPSE_REOPEN,
		PendingTtl:    durationpb.New(r.PendingTTL),
		Retention:     durationpb.New(r.Retention),
		CreatedAt:     encodeWall(r.CreatedWallNanos),
		StartedAt:     encodeWall(r.StartedWallNanos),
		Owner:         r.Owner,
		ReleaseReason: r.ReleaseReason,
		Late:          r.Late,
	}
	if r.OnLapse == admission.Hold {
		encoded.OnLapse = coordinatorv1.OnLapse_ON_LAPSE_HOLD
	}
	if end := r.Alarm(); end != admission.Never {
		encoded.Remaining = durationpb.New(max(0, end.Sub(live)))
	}
	since := r.GrantedAt
	switch r.State {
	case admission.StateCommitted:
		encoded.CommittedAt = encodeWall(r.CommittedWallNanos)
		encoded.ResponseBytes = uint64(r.Response.Bytes)
		since = r.EndedAt
	case admission.StateReleased:
		since = r.EndedAt
	}
	encoded.Age = durationpb.New(max(0, live.Sub(since)))
	return encoded
}

func encodeState(s admission.State) coordinatorv1.State {
	switch s {
	case admission.StatePending:
		return coordinatorv1.State_STATE_PENDING
	case admission.StateLapsed:
		return coordinatorv1.State_STATE_LAPSED
	case admission.StateInDoubt:
		return coordinatorv1.State_STATE_IN_DOUBT
	case admission.StateCommitted:
		return coordinatorv1.State_STATE_COMMITTED
	case admission.StateReleased:
		return coordinatorv1.State_STATE_RELEASED
	}
	return coordinatorv1.State_STATE_UNSPECIFIED
}

func encodeWall(nanos int64) *timestamppb.Timestamp {
	if nanos == 0 {
		return nil
	}
	return timestamppb.New(time.Unix(0, nanos))
}

func encodeShard(s shard.Status) *coordinatorv1.Shard {
	encoded := &coordinatorv1.Shard{
		Shard:         uint32(s.Shard),
		Leader:        s.Leader.NodeID,
		LeaderAddress: s.Leader.ClientAddress,
		Term:          s.Term,
		AppliedIndex:  s.Applied,
		CommitIndex:   s.Commit,
		LastLogIndex:  s.Last,
		Records: &coordinatorv1.RecordCounts{
			Pending:    s.Records[admission.StatePending],
			Lapsed:     s.Records[admission.StateLapsed],
			InDoubt:    s.Records[admission.StateInDoubt],
			Committed:  s.Records[admission.StateCommitted],
			Released:   s.Records[admission.StateReleased],
			Tombstones: s.Records[admission.StateNone],
		},
		LogBytes:       uint64(max(0, s.LogBytes)),
		StateFileBytes: uint64(max(0, s.StateBytes)),
		MailboxDepth:   uint32(max(0, s.MailboxDepth)),
		MailboxBytes:   uint64(max(0, s.MailboxBytes)),
		Waiters:        uint32(max(0, s.Waiters)),
		Clock:          durationpb.New(time.Duration(s.Clock)),
		StateDigest:    s.Digest,
	}
	if s.HasAlarm {
		encoded.NextAlarmIn = durationpb.New(max(0, s.NextAlarm))
	}
	for _, r := range s.Replicas {
		replica := &coordinatorv1.Replica{
			NodeId: r.NodeID, Address: r.Address, MatchIndex: r.Match, Behind: r.Behind, Voter: r.Voter,
		}
		// Only the leader hears from the others.
		if s.Leader.Self && r.LastContact >= 0 {
			replica.LastContact = durationpb.New(r.LastContact)
		}
		encoded.Replicas = append(encoded.Replicas, replica)
	}
	slices.SortFunc(encoded.Replicas, func(a, b *coordinatorv1.Replica) int {
		return strings.Compare(a.GetNodeId(), b.GetNodeId())
	})
	return encoded
}
