package client_test

import (
	"fmt"

	"github.com/atmostonce/coordinator/client"
)

// Each side effect downstream has a key of its own, which a retry derives again.
func ExampleIdentity_Derive() {
	id := client.Identity{Principal: "p", Operation: "POST /v1/workers", Key: "k"}
	fmt.Println(id.Derive("alloc"))
	fmt.Println(id.DeriveUUID("alloc"))
	// Output:
	// 6c1de27fe54e979bea397d27bfd5d920175dcbd34b97b92ebf77da9acbdd98a6
	// 6c1de27f-e54e-879b-aa39-7d27bfd5d920
}
