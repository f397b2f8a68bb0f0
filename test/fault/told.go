package fault

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/history"
)

// verdict is what a delivery's end says of whether it was carried out.
type verdict int

const (
	answered verdict = iota // the rules have spoken
	never                   // it was certainly not carried out
	perhaps                 // it may have been, now or later
	wrong                   // nothing that a user may be told
)

// classify says what an error is, and under which name it is counted.
func classify(err error) (verdict, string) {
	if err == nil {
		return answered, ""
	}
	f := reason.Of(err)
	if !f.Info {
		switch f.Code {
		case codes.Unavailable:
			// Said by gRPC before a call has a connection.
			if strings.Contains(f.Message, "Error while dialing") {
				return never, "unreachable"
			}
			return perhaps, "connection lost"
		case codes.DeadlineExceeded, codes.Canceled:
			return perhaps, "no answer in time"
		}
		return wrong, fmt.Sprintf("%v %s", f.Code, f.Message)
	}
	switch f.Reason {
	case reason.NoLeader, reason.ShuttingDown, reason.Overloaded:
		return never, string(f.Reason)
	case reason.OutcomeUnknown, reason.DeadlineExceeded, reason.Cancelled:
		return perhaps, string(f.Reason)
	case reason.ReservationLost, reason.ReservationLapsed, reason.ReservationNotFound, reason.CommitConflict,
		reason.AlreadyCommitted, reason.AlreadyReleased, reason.AttemptEnded, reason.FingerprintMismatch,
		reason.NotInDoubt, reason.NotPurgeable, reason.RevisionMismatch:
		return answered, string(f.Reason)
	}
	return wrong, fmt.Sprintf("%s %s", f.Reason, f.Message)
}

// identified is what every request of a caller has.
type identified interface {
	GetIdentity() *coordinatorv1.Identity
}

// shardOf returns the shard of an identity.
func shardOf(id *coordinatorv1.Identity, shards int) int {
	return admission.Identity{
		Namespace: id.GetNamespace(), Principal: id.GetPrincipal(), Operation: id.GetOperation(), Key: id.GetKey(),
	}.Shard(shards)
}

// digest stands for a whole response.
func digest(response *coordinatorv1.Response) history.Digest {
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(response)
	if err != nil {
		panic(err) // it came from a message
	}
	return sha256.Sum256(encoded)
}

// deadline is until when an owner may act: from the moment at which it sent what was
// answered, less what clocks may differ by.
func deadline(sent, remaining time.Duration) time.Duration { return sent + remaining/1000*999 }

// owner is what a token stands for.
type owner struct {
	attempt history.Attempt
	fence   uint64
}

func (o owner) split() (history.Attempt, uint64) { return o.attempt, o.fence }

// owners knows by whose token an owner calls.
type owners interface {
	granted(token string, to owner)
	owner(token string) owner
}

// describe fills an event in with what was asked and answered. It reports false for what
// is no event: a read without an answer.
func describe(e *history.Event, known owners, request, reply any, err error) bool {
	ruling, name := classify(err)
	e.Unknown, e.LastSent, e.Tries = ruling == perhaps, e.Sent, 1
	asks(e, known, request)
	switch {
	case err == nil:
		told(e, known, reply)
		return true
	case e.Kind == history.Missing: // a read
		e.Reason = ""
		return name == string(reason.ReservationNotFound)
	case name == string(reason.AttemptEnded):
		e.Kind = history.Ended
	case ruling == answered:
		e.Call, e.Kind, e.Reason = e.Kind, history.Refused, name
	}
	return true
}

// asks fills in what was asked for, as the kind of its success; a read is Missing.
func asks(e *history.Event, known owners, request any) {
	switch asked := request.(type) {
	case *coordinatorv1.ReserveRequest:
		e.Kind = history.Granted
		copy(e.Attempt[:], asked.GetAttemptId())
		e.TTL, e.Retention = asked.GetPendingTtl().AsDuration(), admission.RetentionDefault
		if asked.GetRetention() != nil {
			e.Retention = asked.GetRetention().AsDuration()
		}
		if asked.GetPendingTtl() == nil {
			e.TTL = admission.PendingTTLDefault
		}
		e.Hold = asked.GetOnLapse() == coordinatorv1.OnLapse_ON_LAPSE_HOLD
		e.Fingerprint, e.Owner = string(asked.GetFingerprint()), asked.GetOwner()
	case *coordinatorv1.CommitRequest:
		e.Kind, e.Response, e.Retention = history.Committed, digest(asked.GetResponse()), asked.GetRetention().AsDuration()
		e.Attempt, e.Fence = known.owner(asked.GetToken()).split()
	case *coordinatorv1.ReleaseRequest:
		e.Kind, e.Note = history.Released, asked.GetReason()
		e.Attempt, e.Fence = known.owner(asked.GetToken()).split()
	case *coordinatorv1.ExtendRequest:
		e.Kind, e.TTL = history.Extended, asked.GetPendingTtl().AsDuration()
		e.Attempt, e.Fence = known.owner(asked.GetToken()).split()
	case *coordinatorv1.ResolveRequest:
		e.Kind, e.Revision, e.Note = history.Resolved, asked.GetRevision(), asked.GetNote()
		if asked.GetApplied() != nil {
			e.Applied, e.Response, e.Note = true, digest(asked.GetApplied()), ""
		}
	case *coordinatorv1.PurgeRequest:
		e.Kind, e.Revision, e.Fence, e.Force = history.Purged, asked.GetRevision(), asked.GetFence(), asked.GetForce()
	default:
		e.Kind = history.Missing
	}
}

// told fills in what was answered.
func told(e *history.Event, known owners, reply any) {
	switch answer := reply.(type) {
	case *coordinatorv1.ReserveResponse:
		toldReserve(e, known, answer)
	case *coordinatorv1.CommitResponse:
		e.Late, e.Repeated = answer.GetLate(), answer.GetRepeated()
	case *coordinatorv1.ReleaseResponse:
		e.Late, e.Repeated = answer.GetLate(), answer.GetRepeated()
	case *coordinatorv1.ExtendResponse:
		e.Deadline = deadline(e.Sent, answer.GetRemaining().AsDuration())
	case *coordinatorv1.ResolveResponse:
		e.Repeated = answer.GetRepeated()
	case *coordinatorv1.GetResponse:
		shown(e, answer.GetRecord())
	}
}

func toldReserve(e *history.Event, known owners, answer *coordinatorv1.ReserveResponse) {
	switch outcome := answer.GetOutcome().(type) {
	case *coordinatorv1.ReserveResponse_Granted:
		g := outcome.Granted
		e.Fence, e.Number, e.PreviousFence = g.GetFence(), g.GetAttempt(), g.GetPrevious().GetFence()
		e.Deadline = deadline(e.Sent, g.GetWaited().AsDuration()+g.GetRemaining().AsDuration())
		e.Repeated, e.Note = g.GetRepeated(), g.GetPrevious().GetReason()
		switch g.GetPrevious().GetEnd() {
		case coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED:
			e.Previous = history.EndReleased
		case coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED:
			e.Previous = history.EndLapsed
		}
		known.granted(g.GetToken(), owner{e.Attempt, g.GetFence()})
	case *coordinatorv1.ReserveResponse_Pending:
		e.Kind, e.Number, e.Holder = history.Pending, outcome.Pending.GetAttempt(), outcome.Pending.GetOwner()
	case *coordinatorv1.ReserveResponse_Committed:
		e.Kind, e.Response = history.Replayed, digest(outcome.Committed.GetResponse())
	case *coordinatorv1.ReserveResponse_InDoubt:
		e.Kind, e.Holder = history.InDoubt, outcome.InDoubt.GetOwner()
	}
}

// shown fills in what a read of the record says.
func shown(e *history.Event, record *coordinatorv1.Record) {
	e.Number, e.Holder, e.Fence, e.Revision = record.GetAttempt(), record.GetOwner(), record.GetFence(), record.GetRevision()
	e.Fingerprint = string(record.GetFingerprint())
	switch record.GetState() {
	case coordinatorv1.State_STATE_COMMITTED:
		e.Kind, e.State, e.Response = history.Replayed, history.StateCommitted, digest(record.GetResponse())
	case coordinatorv1.State_STATE_PENDING:
		e.Kind, e.State = history.Pending, history.StatePending
	case coordinatorv1.State_STATE_IN_DOUBT:
		e.Kind, e.State = history.InDoubt, history.StateInDoubt
	case coordinatorv1.State_STATE_LAPSED:
		e.Kind, e.State = history.Free, history.StateLapsed
	case coordinatorv1.State_STATE_RELEASED:
		e.Kind, e.State = history.Free, history.StateReleased
	}
}
