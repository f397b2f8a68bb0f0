package rpc

import (
	"context"
	"errors"
	"fmt"

	"github.com/atmostonce/coordinator/internal/actor"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// refusal turns what the rules refused into a status.
func refusal(r admission.Reason) error { return reason.Error(reason.Reason(r), "") }

// fault turns an error of a replica into a status. One that nobody named promises
// nothing.
func (s *server) fault(err error) error {
	if named := s.namedFault(err); named != nil {
		return named
	}
	s.logger.Error("a replica failed in a way that has no name", "error", err)
	return reason.Error(reason.OutcomeUnknown, "")
}

// noLeader is the error of a call that nobody was asked to carry out. A node that belongs to no
// cluster knows no leader of any shard, and that is another matter for who looks after it.
func (s *server) noLeader() error {
	if s.cluster.ID() == "" {
		return reason.Error(reason.NoLeader, "this node belongs to no cluster yet")
	}
	return reason.Error(reason.NoLeader, "")
}

// namedFault returns nil for an error without a name. The doubtful ones come first:
// an error that is two things at once is the one that promises less.
func (s *server) namedFault(err error) error {
	switch {
	case reason.Of(err).Info:
		return err
	case errors.Is(err, actor.ErrOutcomeUnknown):
		return reason.Error(reason.OutcomeUnknown, "")
	case errors.Is(err, context.DeadlineExceeded):
		return reason.Error(reason.DeadlineExceeded, "")
	case errors.Is(err, context.Canceled):
		return reason.Error(reason.Cancelled, "")
	case errors.Is(err, actor.ErrNoLeader):
		return reason.Error(reason.NoLeader, "")
	case errors.Is(err, actor.ErrShuttingDown):
		return reason.Error(reason.ShuttingDown, "")
	case errors.Is(err, actor.ErrNoRoom):
		return s.noRoom()
	case errors.Is(err, actor.ErrOverloaded):
		return reason.Error(reason.Overloaded, full(err))
	}
	return nil
}

// full says what is full, and how much it takes where the error says so.
func full(err error) string {
	most := ""
	if known := (*actor.FullError)(nil); errors.As(err, &known) {
		most = fmt.Sprintf(": %d", known.Most)
		if known.Bytes > 0 {
			most = fmt.Sprintf(": %d, or %d bytes of them", known.Most, known.Bytes)
		}
	}
	switch {
	case errors.Is(err, actor.ErrMailboxFull):
		return "as many calls wait to be decided by the shard as may" + most
	case errors.Is(err, actor.ErrKeyWaitersFull):
		return "as many calls wait for this key to be settled as may" + most
	case errors.Is(err, actor.ErrWaitersFull):
		return "as many calls wait in the shard for a key to be settled as may" + most
	case errors.Is(err, actor.ErrStoreBehind), errors.Is(err, actor.ErrLogBehind):
		return "the shard has more to write than its disk takes"
	}
	return ""
}

// noRoom is the error of an answer that is not given, since too many are under way.
func (s *server) noRoom() error {
	return reason.Error(reason.Overloaded, fmt.Sprintf(
		"clients have yet to take as many bytes of answers as this node holds: %d, a half of that for one connection", s.unsent.most))
}

// outcome turns what became of a forwarded call into what the caller is told. sent
// says that the call may have reached the other node.
func (s *server) outcome(ctx context.Context, err error, sent, reads bool) error {
	failure := reason.Of(err)
	switch {
	case failure.Info:
		return err
	case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
		return reason.Error(reason.Cancelled, "")
	case ctx.Err() != nil, failure.Reason == reason.DeadlineExceeded:
		return reason.Error(reason.DeadlineExceeded, "")
	case !sent:
		return reason.Error(reason.NoLeader, "the shard's leader cannot be reached from this node")
	case reads:
		return reason.Error(reason.NoLeader, s.silence())
	}
	return reason.Error(reason.OutcomeUnknown, s.silence())
}

// silence says whose fault it is that the shard's leader was asked and gave no answer.
func (s *server) silence() string {
	select {
	case <-s.closing:
		return "this node stops, and the shard's leader had yet to answer it"
	default:
		return "the shard's leader was asked and did not answer this node"
	}
}
