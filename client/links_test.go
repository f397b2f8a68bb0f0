package client

import (
	"os/exec"
	"strings"
	"testing"
)

// Who imports the client links neither the server nor what that is made of.
func TestWhatTheClientLinks(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/atmostonce/coordinator/"
	allowed := []string{
		module + "client", module + "gen/coordinator/v1", module + "internal/metakey", module + "internal/lease",
		"google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto/googleapis/rpc",
		"golang.org/x/net", "golang.org/x/text", // gRPC's
		"golang.org/x/sys",
	}
	for dep := range strings.FieldsSeq(string(out)) {
		if first, _, _ := strings.Cut(dep, "/"); !strings.Contains(first, ".") {
			continue // the standard library
		}
		known := false
		for _, prefix := range allowed {
			known = known || dep == prefix || strings.HasPrefix(dep, prefix+"/")
		}
		if !known {
			t.Errorf("links %s", dep)
		}
	}
}
