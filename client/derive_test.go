package client

import (
	"crypto/sha256"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Derived keys are kept by other systems: they never change.
func TestDerivedKeysNeverChange(t *testing.T) {
	id := Identity{Principal: "p", Operation: "POST /v1/workers", Key: "k"}
	const key = "6c1de27fe54e979bea397d27bfd5d920175dcbd34b97b92ebf77da9acbdd98a6"
	const uuid = "6c1de27f-e54e-879b-aa39-7d27bfd5d920"
	if got := id.Derive("alloc"); got != key {
		t.Errorf("Derive: %s", got)
	}
	if got := id.DeriveUUID("alloc"); got != uuid {
		t.Errorf("DeriveUUID: %s", got)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(id.DeriveUUID("x")) {
		t.Error("not a UUID of version 8")
	}
	id.Namespace = "default"
	if id.Derive("alloc") != key {
		t.Error("the namespace that is filled in is another one")
	}
}

// Golden values of every kind of part. A change here is a change of what other systems have
// stored, and of what a retry after an update derives: it must not happen.
func TestDerivedKeysOfEveryKind(t *testing.T) {
	for _, golden := range []struct {
		id        Identity
		name      string
		key, uuid string
	}{
		{Identity{Key: "k"}, "",
			"6b2815d725e31d691758324f5494d93f4a5865ec3b54d7a913d68d004543c2b9", "6b2815d7-25e3-8d69-9758-324f5494d93f"},
		{Identity{Namespace: "tenant", Principal: "acct_1", Operation: "POST /v1/orders", Key: "8e03978e-40d5-43dd-bc93-6894a57f9324"}, "charge",
			"8ce128e044b15a48ae8efc4522d9fdbf1fe9004ac3290dcb02b2350d888d5184", "8ce128e0-44b1-8a48-ae8e-fc4522d9fdbf"},
		{Identity{Principal: "日本", Operation: "trade:binance:live", Key: "a\x00b"}, "order 1/2",
			"1b63c2f55f36543913dd3efda09f3029ed8747b2a7e314f3b9d5d4b1af65c57e", "1b63c2f5-5f36-8439-93dd-3efda09f3029"},
		{Identity{Key: strings.Repeat("k", 255)}, strings.Repeat("n", 1000),
			"da1c373e4c971764229dab1f52185a9b3c2cc711aa7ba5193f17b8461314279c", "da1c373e-4c97-8764-a29d-ab1f52185a9b"},
	} {
		if key, uuid := golden.id.Derive(golden.name), golden.id.DeriveUUID(golden.name); key != golden.key || uuid != golden.uuid {
			t.Errorf("%+v, %q: %q, %q", golden.id, golden.name, key, uuid)
		}
		// The definition, once more and by hand.
		var framed []byte
		namespace := golden.id.Namespace
		if namespace == "" {
			namespace = "default"
		}
		for _, part := range []string{"coordinator derived key 1", namespace, golden.id.Principal, golden.id.Operation, golden.id.Key, golden.name} {
			n := len(part)
			for n >= 128 { // seven bits a byte, the lowest first
				framed = append(framed, byte(n)|128)
				n >>= 7
			}
			framed = append(append(framed, byte(n)), part...)
		}
		if want := fmt.Sprintf("%x", sha256.Sum256(framed)); golden.id.Derive(golden.name) != want {
			t.Errorf("%+v, %q: not as it is defined", golden.id, golden.name)
		}
		if r := (&Reservation{identity: golden.id}); r.Derive(golden.name) != golden.key {
			t.Error("a reservation derives otherwise than its identity")
		}
	}
}

// No two things derive the same key, whatever the parts hold.
func TestDerivedKeysDiffer(t *testing.T) {
	seen := map[string]string{}
	parts := []string{"", "a", "b", "ab", "\x01a", ":"}
	for _, principal := range parts {
		for _, operation := range parts {
			for _, key := range parts {
				for _, name := range parts {
					what := principal + "|" + operation + "|" + key + "|" + name
					derived := Identity{Principal: principal, Operation: operation, Key: key}.Derive(name)
					if other, there := seen[derived]; there {
						t.Fatalf("%q and %q derive the same", what, other)
					}
					seen[derived] = what
				}
			}
		}
	}
}

// The client finds an identity's shard where the nodes do.
func TestShardsAreThoseOfTheNodes(t *testing.T) {
	for _, key := range []string{"a", "b", "order-42", "日本", "x:y"} {
		for _, namespace := range []string{"", "default", "tenant"} {
			ours := Identity{Namespace: namespace, Principal: "p", Operation: "op", Key: key}
			theirs := admission.Identity{Namespace: namespace, Principal: "p", Operation: "op", Key: key}
			if namespace == "" {
				theirs.Namespace = admission.DefaultNamespace
			}
			for _, shards := range []int{1, 2, 3, 7, 1024} {
				if ours.shard(shards) != theirs.Shard(shards) {
					t.Errorf("%+v of %d: %d, the nodes say %d", ours, shards, ours.shard(shards), theirs.Shard(shards))
				}
			}
		}
	}
}
