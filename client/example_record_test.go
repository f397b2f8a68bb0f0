package client_test

import (
	"context"
	"fmt"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// Someone who knows settles what an owner has left open. The revision is that of the
// record that was looked at, so that nothing is settled that has changed since.
func ExampleClient_ResolveNotApplied() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	order := client.Identity{Operation: "trade:live", Key: "resolve-42"}
	r, err := c.Reserve(ctx, order, client.WithOnLapse(client.Hold), client.WithPendingTTL(100*time.Millisecond))
	if err != nil {
		fmt.Println(err)
		return
	}
	<-r.Context().Done() // its owner went silent
	record := &client.Record{}
	for record.State != client.StateInDoubt {
		if record, err = c.Get(ctx, order); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(record.State)
	fmt.Println(c.ResolveNotApplied(ctx, order, record.Revision, "the exchange has no such order"))
	r, err = c.Reserve(ctx, order)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Previous().End, r.Previous().Reason)
	// Output:
	// IN_DOUBT
	// <nil>
	// released the exchange has no such order
}

// What the coordinator knows of a key.
func ExampleClient_Get() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	ctx := context.Background()

	id := client.Identity{Operation: "import", Key: "get-42"}
	r, err := c.Reserve(ctx, id, client.WithOwner("importer-1"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = r.Release(ctx, "only an example") }()
	record, err := c.Get(ctx, id)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(record.State, record.Owner, record.Attempt, record.OnLapse)
	// Output: PENDING importer-1 1 reopen
}
