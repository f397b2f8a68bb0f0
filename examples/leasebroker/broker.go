package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// Bounds of an operation.
const (
	// operationMost is how long one may take. It is longer than what its calls to the
	// hypervisor may take with all their tries, and it ends what is kept alive.
	operationMost   = time.Minute
	leaseSecondsMin = 1
	leaseSecondsMax = 24 * 60 * 60
)

// broker carries the three operations out. They are guarded, so at most one attempt at a
// request runs at a time; and each is a list of steps, any of which may be the last thing
// that this process does. Then the reservation lapses, and the same request, sent again,
// begins at the first step, maybe in another process. It comes to the same end because
//
//  1. what is to be done is written down before it is done, so that nothing is ever
//     done that nobody knows of;
//  2. every side effect carries a key that is derived from the request, so that every
//     attempt asks for the same thing and the hypervisor does it once;
//  3. a worker's state only moves forward, so that a step which is taken again finds
//     its work done.
type broker struct {
	pool         *pool
	hypervisor   *hypervisor
	log          *slog.Logger
	createWithin time.Duration
}

func (b *broker) routes(guard func(http.Handler) http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/workers", guard(b.carryOut(b.create)))
	mux.Handle("DELETE /v1/workers/{id}", guard(b.carryOut(b.remove)))
	mux.Handle("POST /v1/workers/{id}/reboot", guard(b.carryOut(b.reboot)))
	mux.HandleFunc("GET /v1/workers", b.list)
	mux.HandleFunc("GET /v1/workers/{id}", b.show)
	return mux
}

// create leases a worker.
func (b *broker) create(ctx context.Context, r *http.Request, res *client.Reservation) (answer, error) {
	id := res.Identity()
	var order struct {
		Flavor       string `json:"flavor"`
		LeaseSeconds int    `json:"lease_seconds"`
	}
	if err := decode(r, &order); err != nil {
		return answer{}, bad("%v", err)
	}
	if !flavors.MatchString(order.Flavor) {
		return answer{}, bad("flavor must be a name such as small")
	}
	if order.LeaseSeconds < leaseSecondsMin || order.LeaseSeconds > leaseSecondsMax {
		return answer{}, bad("lease_seconds must be %d to %d", leaseSecondsMin, leaseSecondsMax)
	}

	// 1. A place in the pool. The worker's own id is a derived one too: whichever attempt
	// comes here finds the worker of the one before.
	w, err := b.pool.take(worker{
		ID: id.DeriveUUID("worker"), Account: id.Principal, Flavor: order.Flavor, LeaseSeconds: order.LeaseSeconds,
		Ends: time.Now().Add(b.createWithin), Fence: res.Fence(),
	})
	switch {
	case errors.Is(err, errPoolFull):
		return answer{}, notDone(http.StatusServiceUnavailable, "POOL_FULL", "every worker is leased; try again later with the same key")
	case errors.Is(err, errEnded):
		return answer{}, gone()
	case errors.Is(err, errOtherOrder):
		return answer{}, &problem{status: http.StatusUnprocessableEntity, code: "KEY_REUSED", detail: "this key has leased another worker, long ago; a new order needs a new key"}
	case err != nil:
		return answer{}, err
	}

	if w.State == creating {
		// 2. A machine. An attempt that has been here gets the machine that was made then.
		m, err := b.hypervisor.create(ctx, id.DeriveUUID("machine"), w.ID, w.Flavor)
		var refused *refusedError
		if errors.As(err, &refused) {
			return answer{}, b.giveBack(w, refused, res)
		}
		if err != nil {
			return answer{}, err
		}
		if !m.running() { // it was taken back, so long ago that the pool has forgotten it
			if err := b.pool.end(w.ID); err != nil {
				return answer{}, err
			}
			return answer{}, gone()
		}

		// 3. The lease, from now on.
		w, err = b.pool.activate(w.ID, m.ID, m.Address, time.Now())
		if errors.Is(err, errEnded) {
			return answer{}, gone() // sweep.go has the machine
		}
		if err != nil {
			return answer{}, err
		}
	}

	// 4. The answer. It is recorded before the caller gets it, and every retry gets it, too.
	return answer{status: http.StatusCreated, location: "/v1/workers/" + w.ID, body: shown(w)}, nil
}

// giveBack gives up the place of a worker whose machine was refused.
func (b *broker) giveBack(w worker, refused *refusedError, res *client.Reservation) error {
	final := refused.Status == http.StatusUnprocessableEntity // and so would be every other attempt
	if !final && !alone(res) {
		return refused // what went silent before us may yet make a machine: the place stays taken
	}
	if err := b.pool.drop(w.ID, w.Fence); err != nil {
		return err
	}
	if final {
		return &problem{status: http.StatusUnprocessableEntity, code: "ORDER_REFUSED", detail: "the hypervisor makes no such machine: " + refused.Reason}
	}
	return notDone(http.StatusServiceUnavailable, "NO_MACHINE", "the hypervisor made none: "+refused.Reason)
}

// remove ends a lease.
func (b *broker) remove(ctx context.Context, r *http.Request, res *client.Reservation) (answer, error) {
	id, done := res.Identity(), answer{status: http.StatusNoContent}

	// 1. The intent. From here on the worker ends, whether its caller comes back or not.
	w, err := b.pool.retire(r.PathValue("id"), id.Principal)
	switch {
	case errors.Is(err, errNoWorker):
		return answer{}, noWorker()
	case errors.Is(err, errCreating):
		return answer{}, stillCreating()
	case errors.Is(err, errEnded):
		return done, nil // an attempt before this one came further, or another request did
	case err != nil:
		return answer{}, err
	}

	// 2. The machine.
	if err := b.hypervisor.terminate(ctx, id.DeriveUUID("terminate"), w.Machine); err != nil {
		return answer{}, err
	}

	// 3. Its place is free.
	if err := b.pool.end(w.ID); err != nil {
		return answer{}, err
	}
	return done, nil
}

// reboot reboots a worker. Nothing at the machine tells whether it was rebooted for this
// request, so it is the derived key alone that makes it once.
func (b *broker) reboot(ctx context.Context, r *http.Request, res *client.Reservation) (answer, error) {
	id := res.Identity()
	w, err := b.pool.get(r.PathValue("id"))
	switch {
	case errors.Is(err, errNoWorker) || err == nil && w.Account != id.Principal:
		return answer{}, noWorker()
	case err != nil:
		return answer{}, err
	case w.State == creating:
		return answer{}, stillCreating()
	case w.Machine == "":
		return answer{}, gone()
	}
	// A worker that has ended is asked for, too: an attempt before this one may have
	// rebooted it in time, and then that is the answer.
	m, err := b.hypervisor.reboot(ctx, id.DeriveUUID("reboot"), w.Machine)
	var refused *refusedError
	switch {
	case errors.As(err, &refused) && (refused.Status == http.StatusGone || refused.Status == http.StatusNotFound):
		return answer{}, gone()
	case errors.As(err, &refused):
		return answer{}, notDone(http.StatusServiceUnavailable, "NOT_REBOOTED", "the hypervisor did not reboot it: "+refused.Reason)
	case err != nil:
		return answer{}, err
	}
	return answer{status: http.StatusOK, body: map[string]any{"id": w.ID, "boots": m.Boots}}, nil
}

func (b *broker) list(w http.ResponseWriter, r *http.Request) {
	workers, err := b.pool.list(accountOf(r))
	if err != nil {
		b.unknown(w, r, err)
		return
	}
	all := []map[string]any{}
	for _, one := range workers {
		all = append(all, shown(one))
	}
	writeAnswer(w, answer{status: http.StatusOK, body: map[string]any{"workers": all, "capacity": b.pool.capacity}})
}

func (b *broker) show(w http.ResponseWriter, r *http.Request) {
	switch one, err := b.pool.get(r.PathValue("id")); {
	case errors.Is(err, errNoWorker) || err == nil && one.Account != accountOf(r):
		writeProblem(w, noWorker())
	case err != nil:
		b.unknown(w, r, err)
	default:
		writeAnswer(w, answer{status: http.StatusOK, body: shown(one)})
	}
}
