package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// The parts of Do by themselves. Only who gets a reservation is admitted.
func ExampleClient_Reserve() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	deploy := client.Identity{Operation: "deploy", Key: "reserve-42"}
	attempt := func() {
		r, err := c.Reserve(ctx, deploy, client.WithPendingTTL(time.Minute), client.WithOwner("ci-1"))
		var (
			pending *client.PendingError
			done    *client.CommittedError
		)
		switch {
		case errors.As(err, &pending):
			fmt.Println("it runs already, for", pending.Owner)
		case errors.As(err, &done):
			fmt.Println("it was done before, with code", done.Response.Code)
		case errors.Is(err, client.ErrInDoubt):
			fmt.Println("someone has to find out first")
		case err != nil: // the coordinator is away, for example: the answer is no
			fmt.Println("not now:", err, client.RetryAfter(err))
		default:
			fmt.Println("go ahead, attempt", r.Attempt())
			if _, err := c.Reserve(ctx, deploy); errors.Is(err, client.ErrPending) {
				fmt.Println("nobody else may")
			}
			if err := r.Commit(ctx, client.Response{Code: 0}); err != nil {
				fmt.Println(err)
			}
		}
	}
	attempt()
	attempt()
	// Output:
	// go ahead, attempt 1
	// nobody else may
	// it was done before, with code 0
}

// The next one in is told why the one before did nothing.
func ExampleReservation_Release() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	worker := client.Identity{Operation: "POST /v1/workers", Key: "release-42"}
	first, err := c.Reserve(ctx, worker)
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := first.Release(ctx, "no capacity"); err != nil {
		fmt.Println(err)
	}
	second, err := c.Reserve(ctx, worker)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(second.Attempt(), second.Previous().End, second.Previous().Reason)
	// Output: 2 released no capacity
}

// Work that takes long is renewed while it runs, and stops when the ownership ends.
func ExampleReservation_KeepAlive() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	backup := client.Identity{Operation: "backup", Key: "keep-alive-42"}
	r, err := c.Reserve(context.Background(), backup, client.WithPendingTTL(300*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := r.Within(context.Background()) // ends with the ownership, too
	defer cancel()
	stop := r.KeepAlive(ctx)
	defer stop()

	select {
	case <-time.After(time.Second): // the work
		fmt.Println("done:", r.Commit(ctx, client.Response{}))
	case <-ctx.Done():
		fmt.Println("stopped:", context.Cause(ctx))
	}
	// Output: done: <nil>
}

// A downstream system that keeps the highest fence refuses an owner whose time is over.
func ExampleReservation_Fence() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	highest := uint64(0)
	write := func(r *client.Reservation) bool {
		if r.Fence() < highest {
			return false
		}
		highest = r.Fence()
		return true
	}
	file := client.Identity{Operation: "write", Key: "fence-42"}
	old, err := c.Reserve(ctx, file, client.WithPendingTTL(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(write(old))
	next, err := c.Reserve(ctx, file, client.WithWait(5*time.Second)) // once the old one has lapsed
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(write(next), write(old))
	// Output:
	// true
	// true false
}
