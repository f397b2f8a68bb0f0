package grpcadmit_test

import (
	"os/exec"
	"strings"
	"testing"
)

// Who guards a method links the client, and none of the server.
func TestLinksNothingOfTheServer(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".", "./outgoing").Output()
	if err != nil {
		t.Fatal(err)
	}
	for dependency := range strings.FieldsSeq(string(out)) {
		for _, banned := range []string{
			"github.com/atmostonce/coordinator/internal/", "github.com/hashicorp/", "go.etcd.io/", "github.com/prometheus/", "testing",
		} {
			if dependency == banned || strings.HasSuffix(banned, "/") && strings.HasPrefix(dependency, banned) {
				t.Errorf("it links %s", dependency)
			}
		}
	}
}
