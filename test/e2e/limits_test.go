package e2e

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/test/process"
)

// limit is one limit of the contract on a call: what is of a size, and the sizes that are
// tried. Durations are in milliseconds.
type limit struct {
	field       string
	least, most int
	// tooMuch is what one over the limit is refused for.
	tooMuch reason.Reason
	call    func(context.Context, coordinatorv1.CoordinatorServiceClient, *coordinatorv1.Identity, int) error
}

func limits() []limit {
	reserving := func(field string, least, most int, set func(*coordinatorv1.ReserveRequest, int)) limit {
		return limit{field: field, least: least, most: most, tooMuch: reason.InvalidArgument,
			call: func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, size int) error {
				request := &coordinatorv1.ReserveRequest{Identity: id}
				set(request, size)
				_, err := c.Reserve(ctx, request)
				return err
			}}
	}
	owning := func(field string, least, most int, tooMuch reason.Reason,
		call func(context.Context, coordinatorv1.CoordinatorServiceClient, *coordinatorv1.Identity, string, int) error,
	) limit {
		return limit{field: field, least: least, most: most, tooMuch: tooMuch,
			call: func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, size int) error {
				answer, err := c.Reserve(ctx, &coordinatorv1.ReserveRequest{Identity: id})
				if err != nil {
					return fmt.Errorf("the reservation: %w", err)
				}
				return call(ctx, c, id, answer.GetGranted().GetToken(), size)
			}}
	}
	committing := func(field string, least, most int, tooMuch reason.Reason, set func(*coordinatorv1.CommitRequest, int)) limit {
		return owning(field, least, most, tooMuch, func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, token string, size int) error {
			request := &coordinatorv1.CommitRequest{Identity: id, Token: token, Response: &coordinatorv1.Response{}}
			set(request, size)
			_, err := c.Commit(ctx, request)
			return err
		})
	}
	milliseconds := func(n int) *durationpb.Duration { return durationpb.New(time.Duration(n) * time.Millisecond) }
	const day = 24 * 60 * 60 * 1000
	return []limit{
		reserving("identity.namespace", 1, 64, func(r *coordinatorv1.ReserveRequest, n int) { r.Identity.Namespace = strings.Repeat("n", n) }),
		reserving("identity.principal", 0, 128, func(r *coordinatorv1.ReserveRequest, n int) { r.Identity.Principal = strings.Repeat("p", n) }),
		reserving("identity.operation", 0, 255, func(r *coordinatorv1.ReserveRequest, n int) { r.Identity.Operation = strings.Repeat("o", n) }),
		reserving("identity.key", 1, 255, func(r *coordinatorv1.ReserveRequest, n int) { r.Identity.Key = strings.Repeat("k", n) }),
		reserving("fingerprint", 0, 64, func(r *coordinatorv1.ReserveRequest, n int) { r.Fingerprint = make([]byte, n) }),
		reserving("owner", 0, 128, func(r *coordinatorv1.ReserveRequest, n int) { r.Owner = strings.Repeat("o", n) }),
		reserving("attempt_id", 16, 16, func(r *coordinatorv1.ReserveRequest, n int) { r.AttemptId = bytes.Repeat([]byte{1}, n) }),
		reserving("pending_ttl", 100, day, func(r *coordinatorv1.ReserveRequest, n int) { r.PendingTtl = milliseconds(n) }),
		reserving("retention", 1000, 30*day, func(r *coordinatorv1.ReserveRequest, n int) { r.Retention = milliseconds(n) }),
		reserving("wait", 0, 60_000, func(r *coordinatorv1.ReserveRequest, n int) { r.Wait = milliseconds(n) }),
		committing("retention", 1000, 30*day, reason.InvalidArgument, func(r *coordinatorv1.CommitRequest, n int) { r.Retention = milliseconds(n) }),
		committing("response.code", 0, 999, reason.InvalidArgument, func(r *coordinatorv1.CommitRequest, n int) { r.Response.Code = uint32(n) }),
		committing("response.headers", 0, 128, reason.InvalidArgument, func(r *coordinatorv1.CommitRequest, n int) {
			for i := range n {
				r.Response.Headers = append(r.Response.Headers, &coordinatorv1.Header{Name: fmt.Sprint("h", i)})
			}
		}),
		committing("response", 0, 1<<20, reason.ResponseTooLarge, func(r *coordinatorv1.CommitRequest, n int) { r.Response.Body = make([]byte, n) }),
		owning("pending_ttl", 100, day, reason.InvalidArgument, func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, token string, n int) error {
			_, err := c.Extend(ctx, &coordinatorv1.ExtendRequest{Identity: id, Token: token, PendingTtl: milliseconds(n)})
			return err
		}),
		owning("reason", 0, 1024, reason.InvalidArgument, func(ctx context.Context, c coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, token string, n int) error {
			_, err := c.Release(ctx, &coordinatorv1.ReleaseRequest{Identity: id, Token: token, Reason: strings.Repeat("r", n)})
			return err
		}),
	}
}

// Every limit on a call of a real node: what is at it and one within is taken, what is one
// beyond is refused with the field's name, and changes nothing.
func TestLimits(t *testing.T) {
	c := process.Start(t, programs, 1)
	service := coordinatorv1.NewCoordinatorServiceClient(c.Nodes[0].Conn())
	for i, l := range limits() {
		for _, try := range []struct {
			size int
			want reason.Reason
		}{
			{l.least - 1, reason.InvalidArgument}, {l.least, ""}, {l.least + 1, ""},
			{l.most - 1, ""}, {l.most, ""}, {l.most + 1, l.tooMuch},
		} {
			if try.size < 0 || try.want == "" && (try.size < l.least || try.size > l.most) || l.field == "identity.namespace" && try.size == 0 {
				continue // there is no such size, or it stands for the default
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			id := &coordinatorv1.Identity{Operation: "limits", Key: fmt.Sprint(i, "-", try.size)}
			err := l.call(ctx, service, id, try.size)
			failure := reason.Of(err)
			switch {
			case try.want == "" && err != nil:
				t.Errorf("%s of %d: %v", l.field, try.size, err)
			case try.want != "" && failure.Reason != try.want:
				t.Errorf("%s of %d: %v, want %s", l.field, try.size, err, try.want)
			case try.want != "" && (len(failure.Violations) != 1 || !strings.HasPrefix(failure.Violations[0].Field, l.field)):
				t.Errorf("%s of %d: violations %v", l.field, try.size, failure.Violations)
			}
			if try.want != "" {
				unchanged(ctx, t, service, id, l.field)
			}
			cancel()
		}
	}
}

// unchanged fails unless the record is as if the refused call had not been made.
func unchanged(ctx context.Context, t *testing.T, service coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity, what string) {
	t.Helper()
	answer, err := service.Get(ctx, &coordinatorv1.GetRequest{Identity: id})
	got := reason.Of(err).Reason
	if err == nil && answer.GetRecord().GetState() == coordinatorv1.State_STATE_PENDING {
		return // reserved, and nothing else
	}
	if got != reason.ReservationNotFound && got != reason.InvalidArgument {
		t.Errorf("%s: the refused call left %v, %v", what, answer, err)
	}
}
