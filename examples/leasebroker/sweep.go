package main

import (
	"context"
	"errors"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// sweepMost is how long one sweep may take.
const sweepMost = time.Minute

// sweepEvery sweeps until the context ends.
func (b *broker) sweepEvery(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := b.sweep(ctx); err != nil && ctx.Err() == nil {
				b.log.WarnContext(ctx, "a sweep did not do all it had to; the next one goes on", "error", err)
			}
		}
	}
}

// sweep takes back what is over: leases that have ended, deletions that nobody came back
// to finish, and workers that nobody finished creating.
//
// It needs no reservation. It only goes on with what the pool has recorded as ending, and
// a machine can be terminated any number of times.
//
// It begins with the pool and looks at the machines after that. So whatever machine an
// ending worker has by now is seen; one that a late call makes after that is seen by the
// next sweep, as the machine of a worker that has ended. A machine of which the pool
// knows nothing is reported and left alone: a broker that has lost its file must not
// terminate the machines that it has forgotten.
func (b *broker) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, sweepMost)
	defer cancel()
	due, err := b.pool.due(time.Now())
	if err != nil {
		return err
	}
	machines, err := b.hypervisor.running(ctx)
	if err != nil {
		return err
	}
	var failed []error
	var strangers []string
	left := make(map[string]bool) // workers that still have a machine
	for _, m := range machines {
		w, err := b.pool.get(m.Name)
		switch {
		case errors.Is(err, errNoWorker):
			strangers = append(strangers, m.ID)
			continue
		case err != nil:
			return err
		case w.State == creating || w.State == active:
			continue
		}
		// Nobody's request is behind this, so what names the work is what it is done to.
		token := client.Identity{Principal: w.Account, Operation: "sweep", Key: m.ID}.DeriveUUID("terminate")
		if err := b.hypervisor.terminate(ctx, token, m.ID); err != nil {
			left[w.ID] = true
			failed = append(failed, err)
		}
	}
	if len(strangers) > 0 {
		b.log.WarnContext(ctx, "the hypervisor has machines that no worker ever had", "machines", len(strangers), "first", strangers[0])
	}
	for _, w := range due {
		if left[w.ID] {
			continue
		}
		if err := b.pool.end(w.ID); err != nil {
			failed = append(failed, err)
			continue
		}
		b.log.InfoContext(ctx, "a worker has ended", "worker", w.ID, "account", w.Account)
	}
	return errors.Join(failed...)
}
