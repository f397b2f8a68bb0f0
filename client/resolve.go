package client

import (
	"context"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// ResolveApplied settles a record that is in doubt or lapsed: the attempt did act, and
// this is its response. revision is that of the record that was looked at, so that
// nothing is settled that has changed since; note, 0 to 1024 bytes, says how it is known.
// The same settlement of the same revision again is fine.
//
// Errors: [ErrRevisionMismatch], [ErrNotInDoubt], [ErrNotFound], [ErrResponseTooLarge],
// [ErrInvalidArgument], [ErrUnavailable], [ErrUnknown].
func (c *Client) ResolveApplied(ctx context.Context, id Identity, revision uint64, response Response, note string) error {
	if err := response.check(callResolve); err != nil {
		return err
	}
	return c.resolve(ctx, id, &coordinatorv1.ResolveRequest{
		Identity: id.wire(), Revision: revision, Note: note,
		Settlement: &coordinatorv1.ResolveRequest_Applied{Applied: response.wire()},
	})
}

// ResolveNotApplied settles a record that is in doubt or lapsed: the attempt did not act,
// and it can no longer act. The note becomes the reason that the next owner is told.
// Otherwise it is as [Client.ResolveApplied].
func (c *Client) ResolveNotApplied(ctx context.Context, id Identity, revision uint64, note string) error {
	return c.resolve(ctx, id, &coordinatorv1.ResolveRequest{
		Identity: id.wire(), Revision: revision, Note: note,
		Settlement: &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}},
	})
}

func (c *Client) resolve(ctx context.Context, id Identity, request *coordinatorv1.ResolveRequest) error {
	_, err := invoke(ctx, c, operation{name: callResolve, identity: id, bound: c.callTimeout},
		func(ctx context.Context, node *sharing) delivery[*coordinatorv1.ResolveResponse] {
			if err := fits(callResolve, request); err != nil {
				return delivery[*coordinatorv1.ResolveResponse]{err: err}
			}
			return node.resolve(ctx, request)
		})
	return err
}
