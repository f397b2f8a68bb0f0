package client_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/atmostonce/coordinator/client"
)

// A guarded operation in six lines: it runs once, and every retry gets its response.
func ExampleClient_Do() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	order := client.Identity{Principal: "account-7", Operation: "POST /v1/orders", Key: "do-42"}
	for range 2 {
		result, err := c.Do(context.Background(), order, func(_ context.Context, r *client.Reservation) (client.Response, error) {
			fmt.Println("placing the order")
			return client.Response{Code: 201, Body: []byte(`{"order":42}`)}, nil
		})
		fmt.Println(result.Response.Code, string(result.Response.Body), result.Replayed, err)
	}
	// Output:
	// placing the order
	// 201 {"order":42} false <nil>
	// 201 {"order":42} true <nil>
}

// The exchange did not answer: the order may have been placed, and nobody places it
// again until someone has looked.
func ExampleUncertain() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	order := client.Identity{Principal: "account-7", Operation: "trade:live", Key: "uncertain-42"}
	for range 2 {
		_, err = c.Do(context.Background(), order, func(context.Context, *client.Reservation) (client.Response, error) {
			return client.Response{}, client.Uncertain(errors.New("the exchange did not answer"))
		}, client.WithOnLapse(client.Hold))
		fmt.Println(errors.Is(err, client.ErrPending), err != nil)
	}
	// Output:
	// false true
	// true true
}

// Under Hold an error is taken as uncertain unless it says otherwise.
func ExampleNotApplied() {
	c, err := client.Dial([]string{endpoint()})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	order := client.Identity{Principal: "account-7", Operation: "trade:live", Key: "not-applied-42"}
	for range 2 {
		_, err = c.Do(context.Background(), order, func(context.Context, *client.Reservation) (client.Response, error) {
			return client.Response{}, client.NotApplied(errors.New("not enough funds"))
		}, client.WithOnLapse(client.Hold))
		fmt.Println(err)
	}
	// Output:
	// not enough funds
	// not enough funds
}
