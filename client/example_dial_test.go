package client_test

import (
	"crypto/tls"
	"fmt"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// All nodes of a cluster: while any of them answers, calls go on.
func ExampleDial() {
	c, err := client.Dial([]string{"10.0.0.1:7420", "10.0.0.2:7420", "10.0.0.3:7420"},
		client.WithTLS(&tls.Config{MinVersion: tls.VersionTLS13}),
		client.WithCallTimeout(10*time.Second),
		client.WithReserveDefaults(client.WithOwner("orders-1")),
	)
	fmt.Println(err)
	defer c.Close()

	_, err = client.Dial([]string{"10.0.0.1:7420"})
	fmt.Println(err)
	// Output:
	// <nil>
	// client: endpoint "10.0.0.1:7420" is not on loopback: use WithTLS, or WithInsecure to go without
}
