// Package architecture holds the tests that keep the house as docs/ARCHITECTURE.md
// draws it.
package architecture

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/atmostonce/coordinator/"

// floors lists our packages from the ground up. A package may import only what stands
// below it.
var floors = []string{
	"internal/admission",
	"internal/alarm",
	"internal/histogram",
	"internal/certs",
	"internal/certs/certstest",
	"internal/disk",
	"internal/store",
	"internal/raftlog",
	"gen/coordinator/raftlog/v1",
	"internal/peer",
	"internal/membership",
	"internal/raftfsm",
	"internal/actor",
	"internal/shard",
	"gen/coordinator/v1",
	"internal/metakey",
	"internal/lease",
	"internal/reason",
	"internal/rpc",
	"internal/rpc/rpctest",
	"internal/metrics",
	"internal/node",
	"internal/version",
	"internal/environment",
	"internal/oneline",
	"internal/stopsignal",
	"cmd/coordinator",
	"client",
	"cmd/coordctl",
	"middleware/internal/key",
	"middleware/internal/verdict",
	"middleware/internal/refusal",
	"middleware/internal/admit",
	"middleware/httpadmit",
	"middleware/httpadmit/outgoing",
	"middleware/grpcadmit",
	"middleware/grpcadmit/outgoing",
}

// bans are imports that a package must not have, anywhere below it, and why.
var bans = []struct {
	importer, imported, reason string
}{
	{"internal/admission", "github.com/", "the rules depend on nothing but the language"},
	{"internal/admission", "google.golang.org/", "the rules know no proto: formats change, rules do not"},
	{"internal/admission", "os", "the rules perform no I/O"},
	{"internal/admission", "sync", "the rules start nothing and share nothing"},
	{"internal/admission", "math/rand", "the rules draw nothing: every replica decides alike"},
	{"internal/admission", "crypto/rand", "the rules draw nothing: every replica decides alike"},
	{"internal/store", "github.com/hashicorp/", "the state knows nothing of consensus, only positions in a log"},
	{"internal/store", "google.golang.org/", "the record's format is its own, and never a message that is served"},
	{"internal/rpc", "github.com/prometheus/", "what is counted is plain numbers; package metrics alone knows how they are shown"},
	{"internal/actor", "google.golang.org/grpc", "deciding does not depend on how calls come in"},
	{"internal/shard", module + "gen/coordinator/v1", "a shard knows no served message"},
	{"cmd/coordctl", module + "internal/store", "the command line speaks to the service, not to its files"},
	{"cmd/coordctl", "github.com/hashicorp/raft", "the command line is a client: no consensus in it"},
	{"cmd/coordctl", "go.etcd.io/bbolt", "the command line is a client: no database in it"},
	{"client", module + "internal", "a public package: others build with it, and internal ones change"},
	{"client", "github.com/hashicorp/", "a client carries no consensus"},
	{"client", "go.etcd.io/bbolt", "a client carries no database"},
	{"middleware/httpadmit", module + "internal", "as the client: a public package"},
	{"middleware/httpadmit", "github.com/hashicorp/", "who guards an endpoint links no consensus"},
	{"middleware/httpadmit", "go.etcd.io/bbolt", "who guards an endpoint links no database"},
	{"middleware/httpadmit/outgoing", module + "client", "a caller of a guarded endpoint links no client of the coordinator"},
	{"middleware/httpadmit/outgoing", module + "gen", "as above: it never speaks to the coordinator"},
	{"middleware/grpcadmit", module + "internal", "as the client: a public package"},
	{"middleware/grpcadmit", "github.com/hashicorp/", "who guards a method links no consensus"},
	{"middleware/grpcadmit", "go.etcd.io/bbolt", "who guards a method links no database"},
	{"middleware/grpcadmit/outgoing", module + "client", "a caller of a guarded method links no client of the coordinator"},
	{"middleware/grpcadmit/outgoing", module + "gen", "as above: it never speaks to the coordinator"},
	{"cmd/coordinator", "testing", "no test help is linked into the program"},
}

// unbanned is what a ban of all that is internal does not mean: names that nodes and callers have in
// common, and how an owner reckons, whoever it is.
var unbanned = []string{module + "internal/metakey", module + "internal/lease"}

type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

func list(t *testing.T) map[string]listed {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Imports,Deps", module+"...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	packages := make(map[string]listed)
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages[p.ImportPath] = p
	}
}

func TestImportsPointDown(t *testing.T) {
	packages := list(t)
	for floor, name := range floors {
		p, ok := packages[module+name]
		if !ok {
			t.Errorf("%s does not exist: the floors are out of date", name)
			continue
		}
		for _, imported := range p.Imports {
			below, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			switch at := slices.Index(floors, below); {
			case at < 0:
				t.Errorf("%s imports %s, which stands on no floor", name, below)
			case at >= floor:
				t.Errorf("%s imports %s, which stands above it", name, below)
			}
		}
	}
	for path := range packages {
		name := strings.TrimPrefix(path, module)
		if strings.HasPrefix(name, "internal/") && !slices.Contains(floors, name) {
			t.Errorf("%s stands on no floor", name)
		}
	}
}

func TestBans(t *testing.T) {
	packages := list(t)
	for _, ban := range bans {
		p := packages[module+ban.importer]
		for _, dep := range p.Deps {
			direct := slices.Contains(p.Imports, dep)
			// The standard library's own needs are not the package's doing.
			if !direct && !strings.Contains(dep, ".") {
				continue
			}
			if slices.Contains(unbanned, dep) && ban.imported == module+"internal" {
				continue
			}
			if dep == ban.imported || strings.HasPrefix(dep, strings.TrimSuffix(ban.imported, "/")+"/") {
				t.Errorf("%s depends on %s: %s", ban.importer, dep, ban.reason)
			}
		}
	}
}
