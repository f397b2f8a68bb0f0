package main

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/atmostonce/coordinator/internal/node"
)

func TestDocument(t *testing.T) {
	const path = "../../docs/settings.md"
	var want bytes.Buffer
	writeDocument(&want)
	if os.Getenv("UPDATE") != "" {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Error("docs/settings.md is out of date: go test ./cmd/coordinator -run TestDocument, with UPDATE=1 to write it")
	}
}

func TestDefaultsAreTheNodes(t *testing.T) {
	o, err := resolve(unset(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := node.Default(); fmt.Sprintf("%+v", o.node) != fmt.Sprintf("%+v", want) {
		t.Errorf("got %+v, want %+v", o.node, want)
	}
}

// unset are the flags of a command line without any.
func unset() map[string]*raw {
	flags := make(map[string]*raw)
	addFlags(pflag.NewFlagSet("", pflag.ContinueOnError), flags)
	return flags
}

// Every default can be given as a value, and each value comes back as it was given.
func TestEveryValueIsReadAsItIsWritten(t *testing.T) {
	for _, section := range table(defaults()) {
		for _, s := range section.settings {
			before := s.value.String()
			if before == "" {
				continue
			}
			if err := s.value.parse(before); err != nil {
				t.Errorf("--%s %v", s.name, err)
			}
			if after := s.value.String(); after != before {
				t.Errorf("--%s: %q became %q", s.name, before, after)
			}
		}
	}
}

func TestTableIsWellFormed(t *testing.T) {
	seen := make(map[string]bool)
	for _, section := range table(defaults()) {
		for _, s := range section.settings {
			if seen[s.name] {
				t.Errorf("--%s is there twice", s.name)
			}
			seen[s.name] = true
			if !strings.HasSuffix(s.usage, ".") || strings.ContainsAny(s.usage, "|\n") {
				t.Errorf("--%s: %q", s.name, s.usage)
			}
		}
	}
}

func TestAmounts(t *testing.T) {
	var n int64
	v := size(&n, 0, 1<<50)
	for text, want := range map[string]int64{"0": 0, "1": 1, "1KiB": 1024, "3 MiB": 3 << 20, "2GiB": 2 << 30, "1TiB": 1 << 40} {
		if err := v.parse(text); err != nil || n != want {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	}
	for _, text := range []string{"", "KiB", "1.5MiB", "1MB", "-1", "9223372036854775807TiB", "99999999999999999999", "1e3", "2048TiB"} {
		if err := v.parse(text); err == nil {
			t.Errorf("%q is %d", text, n)
		}
	}
	var small uint32
	if err := number(&small, 1, 10).parse("11"); err == nil {
		t.Error("11 is at most 10")
	}
}

func TestShortDurations(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 5 * time.Minute: "5m", 24 * time.Hour: "24h", 90 * time.Minute: "1h30m",
		100 * time.Millisecond: "100ms", 10 * time.Minute: "10m", 20 * time.Hour: "20h", time.Hour + time.Second: "1h0m1s",
	} {
		if got := short(d); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	for variable, want := range map[string]string{
		"COORDINATOR_PEER=n1=127.0.0.1:1":               "unknown environment variable COORDINATOR_PEER; the nearest that there is: COORDINATOR_PEERS",
		"COORDINATOR_DATADIR=d":                         "COORDINATOR_DATADIR; the nearest that there is: COORDINATOR_DATA_DIR",
		"COORDINATOR_HTTP_LISTN=127.0.0.1:0":            "the nearest that there is: COORDINATOR_HTTP_LISTEN",
		"COORDINATOR_CONFIGURATION=x":                   "unknown environment variable COORDINATOR_CONFIGURATION\n",
		"COORDINATOR_BOGUS=x":                           "unknown environment variable COORDINATOR_BOGUS\n", // PEERS is as far as any
		"COORDINATOR_PORT=7420":                         "unknown environment variable COORDINATOR_PORT\n",
		"COORDINATOR_=x":                                "unknown environment variable COORDINATOR_\n",
		"COORDINATOR_PEER=":                             "", // empty is not set
		"COORDINATOR_LISTEN=127.0.0.1:0":                "",
		"COORDINATORX=1":                                "",
		"COORDCTL_ENDPOINTS=x":                          "",
		"COORDINATOR_FENCE=12":                          "", // of a command that coordctl run runs
		"COORDINATOR_FENCES=12":                         "unknown environment variable COORDINATOR_FENCES\n",
		"PATH=COORDINATOR_PEER=1":                       "",
		"COORDINATOR_SERVICE_HOST=10.0.0.1":             "", // what Kubernetes sets for services
		"COORDINATOR_SERVICE_PORT=7420":                 "",
		"COORDINATOR_SERVICE_PORT_GRPC=7420":            "",
		"COORDINATOR_PORT=tcp://10.0.0.1:7420":          "",
		"COORDINATOR_PORT_7420_TCP=tcp://10.0.0.1:7420": "",
		"COORDINATOR_PORT_7420_TCP_PROTO=tcp":           "",
		"COORDINATOR_PORT_7420_TCP_PORT=7420":           "",
		"COORDINATOR_PORT_7420_TCP_ADDR=10.0.0.1":       "",
		"COORDINATOR_N1_SERVICE_HOST=10.0.0.1":          "",
	} {
		_, err := resolve(unset(), []string{"HOME=/", variable, "COORDINATOR_SHARDS=6"})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error()+"\n", want) {
			t.Errorf("%s: got %v, want %q", variable, err, want)
		}
	}
}

func FuzzPeers(f *testing.F) {
	f.Add("n1=127.0.0.1:7431,n2=[::1]:7432")
	f.Add(",=,")
	f.Fuzz(func(t *testing.T, given string) {
		c := node.Default()
		v := peers{&c.Peers}
		if v.parse(given) != nil {
			return
		}
		again := node.Default()
		if err := (peers{&again.Peers}).parse(v.String()); err != nil || !reflect.DeepEqual(again.Peers, c.Peers) {
			t.Errorf("%q: %v, then %v (%v)", given, c.Peers, again.Peers, err)
		}
		_ = c.Validate()
	})
}
