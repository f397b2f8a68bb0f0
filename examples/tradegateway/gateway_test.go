package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// together sends the same alert from several senders at once, who insist.
func together(t *testing.T, s sender, times int) []answer {
	t.Helper()
	answers := make([]answer, times)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			var err error
			if answers[i], err = s.insist(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	return answers
}

// oneFill checks that a symbol was filled once, as the answer says.
func oneFill(t *testing.T, m *market, symbol string, answered answer) {
	t.Helper()
	fills := m.fills(t, symbol)
	if len(fills) != 1 || fills[0] != answered.Order {
		t.Errorf("%s was answered with %v, and filled %d times: %+v", symbol, answered, len(fills), fills)
	}
}

func TestGateway(t *testing.T) {
	cluster := process.Start(t, programs, 1)
	live, test := open(t), open(t)
	for name, run := range map[string]func(*testing.T, *process.Cluster, *market, *market){
		"Keys": testKeys, "SoftFailure": testSoftFailure, "Window": testWindow, "NotAnAlert": testNotAnAlert,
		"Killed": testKilled, "Paused": testPaused, "Operator": testOperator, "Stop": testStop, "ExchangeAway": testExchangeAway,
	} {
		t.Run(name, func(t *testing.T) { run(t, cluster, live, test) })
	}
}

// Whatever names an alert, it is ordered once; and what is another alert is ordered too.
func testKeys(t *testing.T, cluster *process.Cluster, live, test *market) {
	d := gate(t, cluster.Endpoints(), live, test)

	t.Run("automatic", func(t *testing.T) {
		answers := together(t, sender{d, "a-secret", "", alertOf("AUTO", "buy", "1.5", "live")}, 5)
		answers = append(answers, sender{d, "a-secret", "", alertOf("AUTO", "buy", "1.50", "live")}.once(t))
		replays := 0
		for _, a := range answers {
			if a.body != answers[0].body || !a.filled() {
				t.Error(a)
			}
			if a.replayed {
				replays++
			}
		}
		if replays != 5 {
			t.Errorf("%d of 6 are replays", replays)
		}
		oneFill(t, live, "AUTO", answers[0])
	})
	t.Run("live and test", func(t *testing.T) {
		for _, key := range []string{"", "same"} {
			symbol := "MODE" + strings.ToUpper(key)
			oneFill(t, live, symbol, sender{d, "a-secret", key, alertOf(symbol, "buy", "1", "live")}.once(t))
			oneFill(t, test, symbol, sender{d, "a-secret", key, alertOf(symbol, "buy", "1", "test")}.once(t))
			if n := len(live.fills(t, symbol)); n != 1 {
				t.Errorf("%d live fills", n)
			}
		}
	})
	t.Run("of the sender", func(t *testing.T) {
		body := alertOf("KEYED", "sell", "2", "live")
		withID := strings.Replace(body, "{", `{"id":"of-the-body",`, 1)
		first := sender{d, "a-secret", "of-the-header", withID}.once(t)
		second := sender{d, "a-secret", "", withID}.once(t) // the header came first: this one is another key
		third := sender{d, "a-secret", "", body}.once(t)    // and so is this one, which has none
		again := []answer{
			sender{d, "a-secret", "of-the-header", body}.once(t),
			sender{d, "a-secret", "", withID}.once(t),
			sender{d, "a-secret", "", body}.once(t),
		}
		for i, a := range []answer{first, second, third} {
			if !a.filled() || a.replayed || !again[i].replayed || again[i].body != a.body {
				t.Errorf("%v, then %v", a, again[i])
			}
		}
		if n := len(live.fills(t, "KEYED")); n != 3 {
			t.Errorf("%d fills of three alerts", n)
		}
		if other := (sender{d, "b-secret", "of-the-header", body}).once(t); !other.filled() || other.replayed {
			t.Errorf("the same key of another account: %v", other)
		}
	})
	t.Run("used twice", func(t *testing.T) {
		first := sender{d, "a-secret", "twice", alertOf("TWICE", "buy", "1", "live")}.once(t)
		for _, body := range []string{alertOf("TWICE", "buy", "2", "live"), alertOf("TWICE", "sell", "1", "live")} {
			if a := (sender{d, "a-secret", "twice", body}).once(t); a.status != http.StatusUnprocessableEntity {
				t.Errorf("the same key for another order: %v", a)
			}
		}
		oneFill(t, live, "TWICE", first)
	})
}

// A failure that is answered with a 200 is none that is kept.
func testSoftFailure(t *testing.T, cluster *process.Cluster, live, test *market) {
	d := gate(t, cluster.Endpoints(), live, test)
	live.fails(t, "SOFT", `{"reject":"insufficient margin"}`)
	s := sender{d, "a-secret", "", alertOf("SOFT", "buy", "1", "live")}
	if a := s.once(t); a.body != `{"success":false,"error":"insufficient margin"}` || a.status != http.StatusOK {
		t.Errorf("rejected: %v", a)
	}
	a := s.once(t)
	if !a.filled() || a.replayed {
		t.Errorf("the retry of what was rejected: %v", a)
	}
	if a := s.once(t); !a.filled() || !a.replayed {
		t.Errorf("the retry of what was filled: %v", a)
	}
	oneFill(t, live, "SOFT", a)
}

// After its window the same alert is another one. It is never answered with the order of
// the earlier one, also if its own request is lost and it has to be looked for.
func testWindow(t *testing.T, cluster *process.Cluster, live, test *market) {
	const window = 1500 * time.Millisecond
	d := gate(t, cluster.Endpoints(), live, test, "--window", window.String())
	s := sender{d, "a-secret", "", alertOf("WINDOW", "buy", "1", "live")}
	began := time.Now()
	first := s.once(t)
	if !first.filled() || first.replayed {
		t.Fatal(first)
	}
	live.fails(t, "WINDOW", `{"lose":"request"}`)
	notPlaced := 0
	eventually(t, "the alert is ordered again", func() bool {
		a := s.once(t)
		if a.replayed {
			if a.body != first.body {
				t.Errorf("%v, replayed as %v", first, a)
			}
			return false
		}
		if took := time.Since(began); took < window {
			t.Errorf("ordered again %v after the first, within the window: %v", took, a)
		}
		if a.Code == "ORDER_NOT_PLACED" {
			notPlaced++
			return false
		}
		if !a.filled() || a.Order.OrderID == first.Order.OrderID {
			t.Errorf("after the window: %v", a)
		}
		return true
	})
	if fills := live.fills(t, "WINDOW"); len(fills) != 2 || notPlaced == 0 {
		t.Errorf("%d fills of two alerts, of which one was lost %d times on its way", len(fills), notPlaced)
	}
}

// What is no alert, or nobody's, orders nothing and leaves nothing behind. Webhooks of
// another kind, real ones, are no alerts.
func testNotAnAlert(t *testing.T, cluster *process.Cluster, live, test *market) {
	d := gate(t, cluster.Endpoints(), live, test)
	good := alertOf("NONE", "buy", "1", "live")
	for _, s := range []struct {
		token, body string
		status      int
		code        string
	}{
		{"", good, http.StatusUnauthorized, "UNAUTHENTICATED"},
		{"wrong", good, http.StatusUnauthorized, "UNAUTHENTICATED"},
		{"a-secret", "", http.StatusBadRequest, "ALERT_INVALID"},
		{"a-secret", `{"exchange":"sim"`, http.StatusBadRequest, "ALERT_INVALID"},
		{"a-secret", strings.Replace(good, `"sim"`, `"other"`, 1), http.StatusBadRequest, "VENUE_UNKNOWN"},
		{"a-secret", strings.Replace(good, `{`, `{"id":7,`, 1), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID"},
		{"a-secret", strings.Replace(good, `{`, `{"symbol":"OTHER",`, 1), http.StatusBadRequest, "IDEMPOTENCY_KEY_INVALID"},
		{"a-secret", strings.Replace(good, `{`, `{"pad":"`+strings.Repeat("x", bodyBytesMost)+`",`, 1), http.StatusRequestEntityTooLarge, "ALERT_TOO_LARGE"},
	} {
		if a := (sender{d, s.token, "", s.body}).once(t); a.status != s.status || a.Code != s.code {
			t.Errorf("%.80s: %v, not %d %s", s.body, a, s.status, s.code)
		}
	}
	for _, payload := range webhooks(t) {
		if a := (sender{d, "a-secret", "", string(payload)}).once(t); a.status != http.StatusBadRequest || a.Code != "ALERT_INVALID" {
			t.Errorf("%.80s: %v", payload, a)
		}
	}
	result, err := programs.Control(within, cluster.Endpoints(), "records", "--namespace", t.Name(), "-o", "json")
	must(t, err)
	if result.Code != 0 || result.Stdout != "" || len(live.fills(t, "NONE")) != 0 {
		t.Errorf("something is left behind: %+v, %v", result, live.fills(t, "NONE"))
	}
}

// webhooks returns real payloads, none of which is an alert.
func webhooks(t *testing.T) []json.RawMessage {
	t.Helper()
	file, err := os.Open("../../middleware/httpadmit/testdata/webhooks/github.ndjson")
	must(t, err)
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	var all []json.RawMessage
	for lines.Scan() {
		var webhook struct{ Payload json.RawMessage }
		must(t, json.Unmarshal(lines.Bytes(), &webhook))
		all = append(all, webhook.Payload)
	}
	must(t, lines.Err())
	if len(all) != 91 {
		t.Fatalf("%d webhooks, not 91", len(all))
	}
	return all
}

// A gateway is killed between submission and reply. Whoever comes after it finds out
// what became of the order, and the alert is filled once.
func testKilled(t *testing.T, cluster *process.Cluster, live, test *market) {
	for _, c := range []struct {
		name, fault string
		expires     bool // the order lies in the exchange's queue until it is too late
	}{
		{"filled", `{"reply_after_ms":60000}`, false},
		{"never accepted", `{"accept_after_ms":6000}`, true},
		{"lost", `{"accept_after_ms":200,"lose":"reply"}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			symbol := "KILL-" + strings.ToUpper(strings.ReplaceAll(c.name, " ", "-"))
			d := gate(t, cluster.Endpoints(), live, test)
			live.fails(t, symbol, c.fault)
			s := sender{d, "a-secret", "", alertOf(symbol, "buy", "1", "live")}
			cut := make(chan error, 1)
			go func() {
				_, err := s.try(t.Context())
				cut <- err
			}()
			live.received(t, symbol, 1)
			if c.name == "filled" {
				eventually(t, "it is filled", func() bool { return len(live.fills(t, symbol)) == 1 })
			}
			p, _ := d.process()
			p.kill()
			if err := <-cut; err == nil {
				t.Error("the sender has an answer of a gateway that was killed")
			}
			d.start()
			a, err := s.insist(t.Context())
			must(t, err)
			if c.expires {
				live.turned(t, symbol)
			}
			oneFill(t, live, symbol, a)
		})
	}
}

// A gateway stands still between submission and reply, for longer than its reservation
// lasts. Another one settles and answers meanwhile, and the first one, once it goes on,
// neither orders again nor answers otherwise.
func testPaused(t *testing.T, cluster *process.Cluster, live, test *market) {
	for _, c := range []struct {
		name, fault string
		expires     bool
	}{
		{"filled", `{"reply_after_ms":60000}`, false},
		{"never accepted", `{"accept_after_ms":6000}`, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			symbol := "PAUSE-" + strings.ToUpper(strings.ReplaceAll(c.name, " ", "-"))
			first, second := gate(t, cluster.Endpoints(), live, test), gate(t, cluster.Endpoints(), live, test)
			live.fails(t, symbol, c.fault)
			body := alertOf(symbol, "buy", "1", "live")
			var late answer
			answered := make(chan error, 1)
			go func() {
				var err error
				late, err = sender{first, "a-secret", "", body}.insist(t.Context())
				answered <- err
			}()
			live.received(t, symbol, 1)
			p, _ := first.process()
			must(t, p.command.Process.Signal(syscall.SIGSTOP))
			a, err := sender{second, "a-secret", "", body}.insist(t.Context())
			must(t, err)
			must(t, p.command.Process.Signal(syscall.SIGCONT))
			must(t, <-answered)
			if late.body != a.body {
				t.Errorf("%v, and from the one that stood still %v", a, late)
			}
			if c.expires {
				live.turned(t, symbol)
			}
			oneFill(t, live, symbol, a)
		})
	}
}

// Where the exchange does not say, an operator does.
func testOperator(t *testing.T, cluster *process.Cluster, live, test *market) {
	d := gate(t, cluster.Endpoints(), live, test, "--settle-every", "0")
	control := func(into any, arguments ...string) {
		t.Helper()
		must(t, programs.ControlJSON(into, within, cluster.Endpoints(), arguments...))
	}
	for _, c := range []struct {
		name, fault string
		applied     bool
	}{
		{"applied", `{"lose":"reply","hide":true}`, true},
		{"not applied", `{"lose":"request","hide":true}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			symbol := "OPERATOR-" + strings.ToUpper(strings.ReplaceAll(c.name, " ", "-"))
			live.fails(t, symbol, c.fault)
			s := sender{d, "a-secret", symbol, alertOf(symbol, "buy", "1", "live")}
			if a := s.once(t); a.status != http.StatusGatewayTimeout || a.Code != "ORDER_OUTCOME_UNKNOWN" {
				t.Fatalf("the exchange says nothing: %v", a)
			}
			eventually(t, "it is in doubt", func() bool { return s.once(t).Code == "IDEMPOTENCY_IN_DOUBT" })
			identity := []string{symbol, "--namespace", d.t.Name(), "--principal", "alice", "--operation", "trade:sim:live"}
			var record struct {
				State    string
				Revision json.Number
			}
			control(&record, append([]string{"get"}, identity...)...)
			resolve := append(append([]string{"resolve"}, identity...), "--revision", record.Revision.String(), "--note", "by telephone")
			if c.applied {
				seen := live.fills(t, symbol)
				if len(seen) != 1 {
					t.Fatalf("%d fills", len(seen))
				}
				told := filledResponse(seen[0])
				resolve = append(resolve, "--applied", "--code", strconv.Itoa(told.Code), "--content-type", told.ContentType, "--body", string(told.Body))
			} else {
				resolve = append(resolve, "--not-applied")
			}
			var settled struct{ Outcome string }
			control(&settled, resolve...)
			a := s.once(t)
			if !a.filled() || a.replayed != c.applied {
				t.Errorf("record %+v, settled %+v, then %v", record, settled, a)
			}
			oneFill(t, live, symbol, a)
		})
	}
}

// A gateway that is asked to stop finishes the orders that it has.
func testStop(t *testing.T, cluster *process.Cluster, live, test *market) {
	d := gate(t, cluster.Endpoints(), live, test, "--pending-ttl", "40s", "--valid-for", "10s")
	live.fails(t, "STOP", `{"reply_after_ms":1500}`)
	s := sender{d, "a-secret", "", alertOf("STOP", "buy", "1", "live")}
	var a answer
	answered := make(chan error, 1)
	go func() {
		var err error
		a, err = s.try(t.Context())
		answered <- err
	}()
	live.received(t, "STOP", 1)
	p, _ := d.process()
	if code := p.stop(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	must(t, <-answered)
	if !a.filled() || a.replayed {
		t.Errorf("in flight when it was stopped: %v", a)
	}
	if _, err := s.try(t.Context()); err == nil {
		t.Error("it takes alerts after its end")
	}
	d.start()
	if again := s.once(t); !again.replayed || again.body != a.body {
		t.Errorf("%v, then %v", a, again)
	}
	oneFill(t, live, "STOP", a)
}

// An exchange that cannot be reached has no orders: the alert is ordered once it can.
func testExchangeAway(t *testing.T, cluster *process.Cluster, live, _ *market) {
	address := unused(t)
	gone := &market{url: "http://" + address}
	d := gate(t, cluster.Endpoints(), live, gone)
	s := sender{d, "a-secret", "", alertOf("AWAY", "buy", "1", "test")}
	for range 2 { // the second one too: the key is free at once
		if a := s.once(t); a.status != http.StatusServiceUnavailable || a.Code != "ORDER_NOT_PLACED" {
			t.Errorf("the exchange is away: %v", a)
		}
	}
	gone.program = start(t, fakes, nil, "--listen", address)
	gone.address(t)
	oneFill(t, gone, "AWAY", s.once(t))
}

// unused returns an address that nobody listens on, from below the range that systems
// draw the ports of outgoing connections from: one of those could take it meanwhile.
func unused(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 12000+rand.IntN(20000))
		if listener, err := net.Listen("tcp", address); err == nil {
			must(t, listener.Close())
			return address
		}
	}
	t.Fatal("there is no unused port")
	return ""
}

// A coordinator that is away admits nothing.
func TestCoordinatorAway(t *testing.T) {
	cluster := process.Start(t, programs, 1)
	live, test := open(t), open(t)
	d := gate(t, cluster.Endpoints(), live, test)
	must(t, cluster.Nodes[0].Kill())
	s := sender{d, "a-secret", "", alertOf("NOBODY", "buy", "1", "live")}
	if a := s.once(t); a.status != http.StatusServiceUnavailable || a.Code != "IDEMPOTENCY_UNAVAILABLE" {
		t.Errorf("the coordinator is away: %v", a)
	}
	if fills := live.fills(t, "NOBODY"); len(fills) != 0 {
		t.Errorf("ordered without being admitted: %v", fills)
	}
	must(t, cluster.Nodes[0].Start())
	a, err := s.insist(t.Context())
	must(t, err)
	oneFill(t, live, "NOBODY", a)
}

func TestSettings(t *testing.T) {
	good := []string{"--venue", "sim:live=http://127.0.0.1:9100"}
	if _, err := parseSettings(good, "alice=s", os.Stderr); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		tokens string
		more   []string
	}{
		{"", nil}, {"alice", nil}, {"alice=", nil}, {"alice=s,", nil},
		{"alice=s", []string{"--valid-for", "10s"}}, {"alice=s", []string{"--valid-for", "0"}}, {"alice=s", []string{"--lookup-lag", "-1s"}},
		{"alice=s", []string{"--settle-every", "-1s"}}, {"alice=s", []string{"--venue", "sim"}}, {"alice=s", []string{"more"}},
	} {
		var said strings.Builder
		if s, err := parseSettings(append(good[:2:2], c.more...), c.tokens, &said); err == nil {
			t.Errorf("%v with %q is taken: %+v", c.more, c.tokens, s)
		}
	}
	if _, err := parseSettings(nil, "alice=s", os.Stderr); err == nil {
		t.Error("a gateway without a venue is taken")
	}
}
