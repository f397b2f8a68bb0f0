package httpadmit_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
	"github.com/atmostonce/coordinator/test/cluster"
)

// alerts is a guarded endpoint in a bubble of virtual time.
type alerts struct {
	handler http.Handler
	runs    int
	takes   time.Duration
	status  int
}

func newAlerts(t *testing.T, source httpadmit.KeySource, options ...httpadmit.Option) *alerts {
	t.Helper()
	c := cluster.Start(t, cluster.Options{Nodes: 1, Change: func(c *node.Config) { c.Shards = 1 }})
	began := time.Now()
	dialed, err := client.Dial([]string{c.Names[0] + ":7420"}, client.WithInsecure(),
		client.WithDialer(c.Network.Host(cluster.ClientHost).Dial),
		client.WithClock(func() time.Duration { return time.Since(began) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dialed.Close() })
	a := &alerts{status: http.StatusOK}
	all := append([]httpadmit.Option{caller("me"), httpadmit.WithKeys(source), httpadmit.WithKeyRequired(), httpadmit.WithWait(time.Minute)}, options...)
	a.handler = httpadmit.New(dialed, all...)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		a.runs++
		time.Sleep(a.takes)
		w.WriteHeader(a.status)
	}))
	return a
}

// alert sends one, and reports whether it was carried out.
func (a *alerts) alert(t *testing.T, mode, quantity string, sent int) bool {
	t.Helper()
	before := a.runs
	body := fmt.Sprintf(`{"exchange":"binance","symbol":"BTCUSDT","action":"buy","quantity":%s,"mode":%q,"sent":%d}`, quantity, mode, sent)
	w := httptest.NewRecorder()
	a.handler.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/alerts", strings.NewReader(body)))
	if w.Code != a.status {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return a.runs > before
}

func template() []httpadmit.Field {
	var fields []httpadmit.Field
	for _, name := range []string{"exchange", "symbol", "action", "quantity", "mode"} {
		fields = append(fields, httpadmit.JSONField(name))
	}
	return fields
}

// The window starts at the first alert, wherever the minute ends, and ends soon after its
// time, however long the handler took.
func TestWindowFromTheFirst(t *testing.T) {
	for _, c := range []struct {
		offset, takes time.Duration
	}{
		{0, 0}, {time.Second, 0}, {59*time.Second + 990*time.Millisecond, 0}, {30 * time.Second, 20 * time.Second}, {59 * time.Second, 59500 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newAlerts(t, httpadmit.AutomaticKey(time.Minute, template()...))
			a.takes = c.takes
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + c.offset)))
			start := time.Now()
			at := func(d time.Duration) { time.Sleep(time.Until(start.Add(d))) }
			if !a.alert(t, "live", "1.5", 0) {
				t.Fatal("the first is not carried out")
			}
			a.takes = 0
			for i, d := range []time.Duration{time.Millisecond, 10 * time.Second, 30 * time.Second, 59 * time.Second, 59900 * time.Millisecond} {
				if d < time.Since(start) {
					continue // the first one took longer
				}
				if at(d); a.alert(t, "live", "1.50", i) {
					t.Errorf("offset %v, takes %v: a duplicate after %v is carried out", c.offset, c.takes, time.Since(start))
				}
			}
			if !a.alert(t, "test", "1.5", 0) || !a.alert(t, "live", "1.6", 0) || !a.alert(t, "live", `"1.5"`, 0) {
				t.Error("another alert is taken for a duplicate")
			}
			if at(62 * time.Second); !a.alert(t, "live", "1.5", 9) {
				t.Errorf("offset %v, takes %v: after %v it is still a duplicate", c.offset, c.takes, time.Since(start))
			}
		})
	}
}

// One that nothing came of starts no window.
func TestWindowAfterARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAlerts(t, httpadmit.AutomaticKey(time.Minute, template()...))
		a.status = http.StatusBadGateway
		if !a.alert(t, "live", "1", 0) || !a.alert(t, "live", "1", 1) {
			t.Error("what failed is not carried out again")
		}
		a.status = http.StatusOK
		time.Sleep(50 * time.Second)
		if !a.alert(t, "live", "1", 2) {
			t.Error("what failed is not carried out again")
		}
		time.Sleep(50 * time.Second)
		if a.alert(t, "live", "1", 3) {
			t.Error("the window began with what failed")
		}
	})
}

// Buckets are cut by the clock: that is what the other form is for.
func TestBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAlerts(t, httpadmit.BucketKey(time.Minute, template()...))
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		if !a.alert(t, "live", "1", 0) {
			t.Error("the first is not carried out")
		}
		time.Sleep(59 * time.Second)
		if a.alert(t, "live", "1", 1) || !a.alert(t, "test", "1", 2) {
			t.Error("in the same minute")
		}
		time.Sleep(time.Second)
		if !a.alert(t, "live", "1", 3) || a.alert(t, "live", "1", 4) {
			t.Error("in the next minute")
		}
	})
}

// A field that the key is made of must be there, unless it need not.
func TestMissingFields(t *testing.T) {
	var handler http.HandlerFunc = func(http.ResponseWriter, *http.Request) {}
	fields := append(template(), httpadmit.JSONField("note").Optional())
	server := serve(t, handler, httpadmit.WithKeys(httpadmit.AutomaticKey(time.Minute, fields...)))
	ask := func(body string) answered { return send(t, request(t, "POST", server.URL, body)) }
	const rest = `"exchange":"e","symbol":"s","action":"buy","quantity":1`
	for _, body := range []string{"", "buy", "{" + rest + "}", "{" + rest + `,"mode":null}`, "{" + rest + `,"mode":"live","mode":"test"}`} {
		wantCode(t, ask(body), httpadmit.CodeKeyInvalid, 400)
	}
	if a := ask("{" + rest + `,"mode":"live"}`); a.status != 200 || a.replayed() {
		t.Errorf("%+v", a)
	}
	if a := ask("{" + rest + `,"mode":"live","note":""}`); a.status != 200 || a.replayed() {
		t.Errorf("an empty note is not a missing one: %+v", a)
	}
	if a := ask("{" + `"mode":"live",` + rest + `,"note":null,"more":1}`); !a.replayed() {
		t.Errorf("%+v", a)
	}
}
