package client

import (
	"regexp"
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
