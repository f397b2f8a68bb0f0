package main

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/internal/reason"
)

// Where no endpoint has an answer each that was tried is named, with why; there is no end of names.
func TestEachEndpointThatWasTriedIsNamed(t *testing.T) {
	leakless(t)
	closed := func() string {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		return listener.Addr().String()
	}
	hangs, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer hangs.Close()
	endpoints := []string{closed(), "nowhere.invalid:7420", closed(), hangs.Addr().String()}
	said := map[string]string{
		endpoints[0]: "cannot connect to " + endpoints[0] + ": connection refused",
		endpoints[1]: "cannot connect to " + endpoints[1] + ": no address is known by this name",
		endpoints[2]: "cannot connect to " + endpoints[2] + ": connection refused",
		endpoints[3]: endpoints[3] + " does not answer as a coordinator: ",
	}
	for _, words := range [][]string{{"status"}, {"shards"}, {"reserve", "k"}} {
		for _, those := range [][]string{endpoints[:1], endpoints[:2], endpoints[:3], endpoints} {
			code, _, stderr := in(t, nil, append([]string{"--timeout", "3s", "--endpoints", strings.Join(those, ",")}, words...)...)
			at := 0
			for _, endpoint := range those {
				found := strings.Index(stderr[at:], said[endpoint])
				if found < 0 || strings.Count(stderr, said[endpoint]) != 1 {
					t.Errorf("%v: exit code %d, %q, want in its place %q", words, code, stderr, said[endpoint])
					break
				}
				at += found
			}
			if code != reason.ExitUnavailable || strings.Count(strings.TrimSpace(stderr), "\n") != 0 {
				t.Errorf("%v: exit code %d, %q", words, code, stderr)
			}
		}
	}
	var many []string
	for range triedMost + 3 {
		many = append(many, closed())
	}
	_, _, stderr := in(t, nil, "status", "--timeout", "2s", "--endpoints", strings.Join(many, ","))
	if named := regexp.MustCompile("cannot connect to ").FindAllString(stderr, -1); len(named) != triedMost || !strings.Contains(stderr, "; and 3 more that gave no answer") {
		t.Errorf("%d are named: %q", len(named), stderr)
	}
}

// What a node has said by itself, and a doubt, are not watered down.
func TestWhatIsSaidOfAllThatWereTried(t *testing.T) {
	away := func(text string) reason.Failure {
		return reason.Failure{Code: codes.Unavailable, Applied: reason.No, Message: text}
	}
	tried := []reason.Failure{away("a"), {}, away("b"), away("b")}
	for want, of := range map[string]reason.Failure{
		"a; b": away("b"), "no leader": {Code: codes.Unavailable, Applied: reason.No, Info: true, Message: "no leader"},
		"it broke": {Code: codes.Unavailable, Applied: reason.Maybe, Message: "it broke"},
	} {
		if got := allTried(of, tried).Message; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for n := range 2 * triedMost {
		var tried []reason.Failure
		for i := range n {
			tried = append(tried, away(fmt.Sprint("at ", i)))
		}
		got := strings.Split(allTried(away("the last"), tried).Message, "; ")
		switch {
		case n < 2 && !slices.Equal(got, []string{"the last"}), n >= 2 && n <= triedMost && len(got) != n,
			n > triedMost && (len(got) != triedMost+1 || got[triedMost] != fmt.Sprintf("and %d more that gave no answer", n-triedMost)):
			t.Errorf("%d tried: %q", n, got)
		}
	}
}
