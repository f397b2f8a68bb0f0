package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

const (
	sendersEach = 4 // of an alert, at once
	atATime     = 6 // alerts
)

// misfortunes are what may befall the submissions of one alert, in their order. Orders
// are valid for a second here.
var misfortunes = [][]string{
	{},
	{`{"reject":"insufficient margin"}`},
	{`{"reply_after_ms":1500}`},  // filled at once, and the gateway has stopped waiting for the reply
	{`{"accept_after_ms":500}`},  // accepted late
	{`{"accept_after_ms":1600}`}, // too late: the exchange refuses it when its turn comes
	{`{"lose":"reply"}`},
	{`{"lose":"request"}`, `{"lose":"request"}`},
	{`{"status":502}`}, // filled, and the reply says that something went wrong
	{`{"lose":"request"}`, `{"reject":"try again"}`, `{"accept_after_ms":300,"lose":"reply"}`},
	{`{"accept_after_ms":1600,"lose":"reply"}`, `{"status":500}`},
}

// storm is many alerts on their way at once.
type storm struct {
	desk    *desk
	alerts  []sender
	symbols []string
	ended   atomic.Int64 // alerts whose senders all have their answer
	sending atomic.Int64
}

// newStorm makes an alert of each of 91 real webhooks: the members of an alert are put
// among those that it has, as alerts come from services that say more than we asked for.
func newStorm(t *testing.T, d *desk, live *market) *storm {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if set := os.Getenv("TRADEGATEWAY_SEED"); set != "" {
		var err error
		seed, err = strconv.ParseUint(set, 10, 64)
		must(t, err)
	}
	t.Logf("TRADEGATEWAY_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	s := &storm{desk: d}
	for i, payload := range webhooks(t) {
		var members map[string]any
		must(t, json.Unmarshal(payload, &members))
		symbol := fmt.Sprintf("STORM%d", i)
		members["exchange"], members["mode"], members["symbol"] = "sim", "live", symbol
		members["action"], members["quantity"] = [...]string{"buy", "sell"}[random.IntN(2)], 1+random.IntN(100)
		delete(members, "id")
		key := ""
		switch i % 3 { // all three kinds of keys
		case 0:
			key = "header-" + symbol
		case 1:
			members["id"] = "body-" + symbol
		}
		body, err := json.Marshal(members)
		must(t, err)
		s.alerts = append(s.alerts, sender{d, "a-secret", key, string(body)})
		s.symbols = append(s.symbols, symbol)
		live.fails(t, symbol, misfortunes[random.IntN(len(misfortunes))]...)
	}
	random.Shuffle(len(s.alerts), func(i, j int) {
		s.alerts[i], s.alerts[j] = s.alerts[j], s.alerts[i]
		s.symbols[i], s.symbols[j] = s.symbols[j], s.symbols[i]
	})
	return s
}

// run sends all alerts, a few at a time, each from several senders at once that insist.
func (s *storm) run(t *testing.T) (answers [][sendersEach]answer, wait func()) {
	answers = make([][sendersEach]answer, len(s.alerts))
	queue := make(chan int, len(s.alerts))
	for i := range s.alerts {
		queue <- i
	}
	close(queue)
	var workers sync.WaitGroup
	t.Cleanup(workers.Wait)
	for range atATime {
		workers.Go(func() {
			for i := range queue {
				var senders sync.WaitGroup
				for j := range sendersEach {
					senders.Go(func() {
						s.sending.Add(1)
						defer s.sending.Add(-1)
						var err error
						if answers[i][j], err = s.alerts[i].insist(t.Context()); err != nil {
							t.Errorf("%s: %v", s.symbols[i], err)
						}
					})
				}
				senders.Wait()
				s.ended.Add(1)
			}
		})
	}
	return answers, workers.Wait
}

// after waits until so many alerts have ended, and others are under way.
func (s *storm) after(t *testing.T, alerts int64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d alerts have ended", alerts), func() bool { return s.ended.Load() >= alerts })
	t.Logf("%d alerts have ended, %d senders are at it", s.ended.Load(), s.sending.Load())
	if s.sending.Load() == 0 {
		t.Error("the storm is over too early: what comes now meets nothing")
	}
}

// Every alert is sent by several senders at once, who insist, to a gateway that is killed
// twice, with a coordinator whose leader is killed twice, and an exchange that does its
// worst. The exchange counts: each alert is filled once, and that is what all of its
// senders were told.
func TestStorm(t *testing.T) {
	cluster := process.Start(t, programs, 3)
	live, test := open(t), open(t)
	d := gate(t, cluster.Endpoints(), live, test)
	s := newStorm(t, d, live)
	began := time.Now()
	answers, wait := s.run(t)

	killLeader := func() *process.Node {
		leader, err := cluster.LeaderOfMost(within)
		must(t, err)
		must(t, leader.Kill())
		return leader
	}
	killGateway := func() {
		p, _ := d.process()
		p.kill()
		d.start()
	}
	s.after(t, 12)
	down := killLeader()
	s.after(t, 28)
	must(t, down.Start())
	killGateway()
	s.after(t, 44)
	must(t, cluster.Serving(within))
	down = killLeader()
	killGateway()
	s.after(t, 60)
	must(t, down.Start())
	wait()
	t.Logf("%d alerts, each from %d senders, took %v", len(s.alerts), sendersEach, time.Since(began))

	for i, symbol := range s.symbols {
		for _, a := range answers[i] {
			if !a.filled() || a.body != answers[i][0].body {
				t.Errorf("%s was answered with %v, and with %v", symbol, answers[i][0], a)
			}
		}
		oneFill(t, live, symbol, answers[i][0])
		ordered, err := parseAlert([]byte(s.alerts[i].body))
		must(t, err)
		if f := answers[i][0].Order; f.Side != ordered.Action || f.Quantity != ordered.Quantity {
			t.Errorf("%+v was filled as %+v", ordered, f)
		}
	}
	// Long after: nothing that lay in a queue was filled yet, and every retry is a replay.
	for i := range s.alerts {
		if a := s.alerts[i].once(t); a.status != http.StatusOK || !a.replayed || a.body != answers[i][0].body {
			t.Errorf("%s, once more: %v", s.symbols[i], a)
		}
		oneFill(t, live, s.symbols[i], answers[i][0])
	}
}
