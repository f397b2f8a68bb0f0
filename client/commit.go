package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// CommitOption is an option of [Reservation.Commit], and of [Client.Do] too.
type CommitOption interface {
	DoOption
	applyToCommit(*commitConfig)
}

type commitConfig struct {
	retention  *time.Duration
	substitute func(refusal error) Response
}

type commitOption func(*commitConfig)

func (o commitOption) applyToCommit(c *commitConfig) { o(c) }
func (o commitOption) applyToDo(c *doConfig)         { o(&c.commit) }

// WithCommitRetention says how long the response is kept, from the commit; 1 s to 30
// days. Default: the record's own.
func WithCommitRetention(d time.Duration) CommitOption {
	return commitOption(func(c *commitConfig) { c.retention = &d })
}

// WithSubstitute says what is committed in place of a response that the coordinator does
// not take ([ErrResponseTooLarge], [ErrInvalidArgument]): that it was done must be
// recorded, if not what was answered. instead is called at most once, with the refusal,
// before what it returns is sent. A retention that is refused gives way to the record's
// own. Default: a Commit that is refused is over, and [Client.Do] commits a response that
// is [Response.Omitted].
func WithSubstitute(instead func(refusal error) Response) CommitOption {
	return commitOption(func(c *commitConfig) { c.substitute = instead })
}

// Commit says that the operation is done, and stores its response for every duplicate.
// It is accepted after the deadline too, as long as nobody else was admitted. The same
// Commit again is fine.
//
// From the moment it is sent the reservation's context has ended, whatever the answer:
// start nothing more. A Commit that fails is never a reason to Release: commit again; the
// answer then is the truth.
//
// A context that is the reservation's own, or made from it, does not end the Commit:
// [WithSettleTimeout] does.
//
// Errors: [ErrConflict], [ErrAlreadyReleased], [ErrResponseTooLarge], [ErrLost],
// [ErrInvalidArgument], [ErrUnavailable], [ErrUnknown].
func (r *Reservation) Commit(ctx context.Context, response Response, options ...CommitOption) error {
	var cfg commitConfig
	for _, option := range given("Commit", options) {
		option.applyToCommit(&cfg)
	}
	r.ownership.end(ErrSettled)
	ctx, bound := r.detached(ctx)
	return r.record(ctx, response, cfg, bound)
}

// record commits the response or, where there is a substitute, what is as near to it as the
// coordinator takes: that takes three commits at most, each within the bound.
//
// Where a response was refused although an earlier delivery of it may have been recorded, a
// failure of what is committed in its place, such as a conflict with it, says no more than
// that: the error is still that nobody knows.
func (r *Reservation) record(ctx context.Context, response Response, cfg commitConfig, bound time.Duration) error {
	err := r.commit(ctx, response, cfg.retention, bound)
	if cfg.substitute == nil {
		return err
	}
	var doubt error
	for instead := cfg.substitute; isRefused(err) && (instead != nil || cfg.retention != nil); {
		if errors.Is(err, ErrUnknown) {
			doubt = err
		}
		if cfg.retention != nil && (instead == nil || isAbout(err, "retention")) {
			cfg.retention = nil
		} else {
			response, instead = instead(err), nil
		}
		err = r.commit(ctx, response, cfg.retention, bound)
	}
	if err != nil {
		return cmp.Or(doubt, err)
	}
	return nil
}

// isRefused reports whether the coordinator does not take what it was to record.
func isRefused(err error) bool {
	return errors.Is(err, ErrResponseTooLarge) || errors.Is(err, ErrInvalidArgument)
}

// isAbout reports whether an argument was refused.
func isAbout(err error, field string) bool {
	var refused *Error
	return errors.As(err, &refused) && slices.ContainsFunc(refused.Violations, func(v Violation) bool { return v.Field == field })
}

func (r *Reservation) commit(ctx context.Context, response Response, retention *time.Duration, bound time.Duration) error {
	if err := response.check(callCommit); err != nil {
		return err
	}
	request := &coordinatorv1.CommitRequest{
		Identity: r.identity.wire(), Token: r.token, Response: response.wire(), Retention: window(retention),
	}
	_, err := invoke(ctx, r.client, operation{name: callCommit, identity: r.identity, bound: bound},
		func(ctx context.Context, node *sharing) delivery[*coordinatorv1.CommitResponse] {
			if err := fits(callCommit, request); err != nil {
				return delivery[*coordinatorv1.CommitResponse]{err: err}
			}
			return node.commit(ctx, request)
		})
	return err
}

// fits refuses what gRPC itself would refuse without saying why.
func fits(call string, request proto.Message) error {
	if size := proto.Size(request); size > messageBytesMax {
		return &Error{
			Call: call, Reason: reasonResponseTooLarge, Code: codes.InvalidArgument, Message: "the response is larger than a message to a node may be",
			Violations: []Violation{{
				Field: "response", Detail: fmt.Sprintf("makes a message of %d bytes, the limit is %d", size, messageBytesMax),
			}},
		}
	}
	return nil
}
