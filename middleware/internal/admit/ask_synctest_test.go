package admit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
	"github.com/atmostonce/coordinator/test/cluster"
)

// refused checks that nobody was admitted, and how that is said.
func refused(t *testing.T, attempt *Attempt, err error, code refusal.Code) *refusal.Refusal {
	t.Helper()
	var r *refusal.Refusal
	if attempt != nil || !errors.As(err, &r) || r.Code != code {
		t.Fatalf("%v, %v; want %s", attempt, err, code)
	}
	return r
}

// Nobody is there: the answer is no within the default time, also for who would wait.
func TestRefusedSoon(t *testing.T) {
	for name, away := range map[string]func(*cluster.Cluster){
		"nobody is there": func(c *cluster.Cluster) {
			for _, name := range c.Names {
				c.StopNode(name)
			}
		},
		"nobody leads": func(c *cluster.Cluster) {
			for _, name := range c.Others(c.AwaitLeader(0)) {
				c.Crash(name)
			}
			time.Sleep(10 * time.Second)
		},
		"nobody answers": func(c *cluster.Cluster) {
			for _, name := range c.Names {
				c.Network.Cut(name, cluster.ClientHost)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodes(t, 3)
				s := settings(t, c, cluster.ClientHost)
				if _, err := s.Ask(t.Context(), question("first")); err != nil {
					t.Fatal(err)
				}
				away(c)
				for _, wait := range []time.Duration{0, time.Minute} {
					s.Wait = &wait
					began := time.Now()
					attempt, err := s.Ask(t.Context(), question("k"))
					r := refused(t, attempt, err, refusal.Unavailable)
					if took := time.Since(began); took > 3*time.Second || r.Executed || r.RetryAfter < time.Second {
						t.Errorf("waiting %v: after %v: %+v", wait, took, r)
					}
				}
				c.Network.HealAll()
			})
		})
	}
}

// A change of leader costs time, and nobody is refused for it.
func TestAFailoverRefusesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodes(t, 3)
		s := settings(t, c, cluster.ClientHost)
		if _, err := s.Ask(t.Context(), question("first")); err != nil {
			t.Fatal(err)
		}
		c.Crash(c.AwaitLeader(0))
		for i := range 5 {
			began := time.Now()
			if _, err := s.Ask(t.Context(), question(fmt.Sprint(i))); err != nil {
				t.Errorf("after %v: %v", time.Since(began), err)
			}
		}
	})
}

// The coordinator admits, and its answer is lost: the caller is refused, and once the
// coordinator can be reached the key is free, though its caller has long gone. Under Hold too,
// where a reservation that lapsed would have to be settled by hand.
func TestAnAdmissionThatNobodyHeardOf(t *testing.T) {
	for _, lapse := range []client.OnLapse{client.Reopen, client.Hold} {
		t.Run(lapse.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := nodes(t, 1)
				s, other := settings(t, c, cluster.ClientHost), settings(t, c, "elsewhere")
				s.OnLapse, other.OnLapse = lapse, lapse
				if _, err := s.Ask(t.Context(), question("first")); err != nil {
					t.Fatal(err)
				}
				c.Network.Cut("n1", cluster.ClientHost)
				ctx, hangUp := context.WithCancel(t.Context())
				attempt, err := s.Ask(ctx, question("k"))
				refused(t, attempt, err, refusal.Unavailable)
				hangUp()
				attempt, err = other.Ask(t.Context(), question("k"))
				refused(t, attempt, err, refusal.InFlight)
				time.Sleep(40 * time.Second)
				c.Network.HealAll()
				time.Sleep(15 * time.Second)
				attempt, err = other.Ask(t.Context(), question("k"))
				if err != nil || attempt.Reservation().Previous().End != client.PreviousReleased {
					t.Fatalf("%+v, %v", attempt.Reservation(), err)
				}
			})
		})
	}
}

// The same, and the process ends before it could be undone: it lapses, and is free or in doubt,
// as the documentation says. Settling it as not applied is right: no handler ran.
func TestAnAdmissionThatNobodyCouldUndo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := nodes(t, 1)
		other := settings(t, c, "elsewhere")
		for _, lapse := range []client.OnLapse{client.Reopen, client.Hold} {
			s := settings(t, c, cluster.ClientHost)
			s.OnLapse, s.PendingTTL = lapse, new(10*time.Second)
			if _, err := s.Ask(t.Context(), question("first "+lapse.String())); err != nil {
				t.Fatal(err)
			}
			c.Network.Cut("n1", cluster.ClientHost)
			attempt, err := s.Ask(t.Context(), question(lapse.String()))
			refused(t, attempt, err, refusal.Unavailable)
			_ = s.Client.Close()
			c.Network.HealAll()
			time.Sleep(12 * time.Second)
		}
		if attempt, err := other.Ask(t.Context(), question("reopen")); err != nil || attempt.Reservation().Previous().End != client.PreviousLapsed {
			t.Errorf("reopen: %v", err)
		}
		attempt, err := other.Ask(t.Context(), question("hold"))
		refused(t, attempt, err, refusal.InDoubt)
		id := client.Identity{Principal: "me", Operation: "op", Key: "hold"}
		record, err := other.Client.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if err := other.Client.ResolveNotApplied(t.Context(), id, record.Revision, "no handler ran"); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Ask(t.Context(), question("hold")); err != nil {
			t.Error(err)
		}
	})
}

// What the coordinator says otherwise.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := settings(t, nodes(t, 1), cluster.ClientHost)
		s.Namespace = "desk"
		q := question("k")
		q.Fingerprint, q.Window = []byte("f"), time.Minute
		first, err := s.Ask(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if id := first.Reservation().Identity(); id != (client.Identity{Namespace: "desk", Principal: "me", Operation: "op", Key: "k"}) {
			t.Errorf("%+v", id)
		}
		attempt, err := s.Ask(t.Context(), q)
		refused(t, attempt, err, refusal.InFlight)
		other := q
		other.Fingerprint = []byte("g")
		attempt, err = s.Ask(t.Context(), other)
		refused(t, attempt, err, refusal.Mismatch)
		attempt, err = s.Ask(t.Context(), question(strings.Repeat("k", 256)))
		refused(t, attempt, err, refusal.Misconfigured)
		time.Sleep(10 * time.Second)
		if r := first.Run(t.Context(), &script{verdict: verdict.Store, response: client.Response{Code: 7}}); r != nil {
			t.Fatal(r)
		}
		var committed *client.CommittedError
		if attempt, err = s.Ask(t.Context(), q); attempt != nil || !errors.As(err, &committed) || committed.Response.Code != 7 {
			t.Fatalf("%v, %v", attempt, err)
		}
		// The window began with the grant, not with the commit.
		if left := committed.Remaining; left > 50*time.Second || left < 49*time.Second {
			t.Errorf("%v are left of the window", left)
		}
	})
}

func TestCheck(t *testing.T) {
	for name, change := range map[string]func(*Settings){
		"client": func(s *Settings) { s.Client = nil }, "logger": func(s *Settings) { s.Logger = nil },
		"response limit": func(s *Settings) { s.ResponseLimit = -1 }, "reserve timeout": func(s *Settings) { s.ReserveTimeout = 0 },
		"handler timeout": func(s *Settings) { s.HandlerTimeout = -1 }, "settle wait": func(s *Settings) { s.SettleWait = 0 },
		"retry after": func(s *Settings) { s.RetryAfter = 0 }, "pending ttl": func(s *Settings) { s.PendingTTL = new(time.Duration) },
		"retention": func(s *Settings) { s.Retention = new(31 * 24 * time.Hour) }, "owner": func(s *Settings) { s.Owner = strings.Repeat("o", 129) },
		"on lapse": func(s *Settings) { s.OnLapse = 7 },
	} {
		s := Defaults(&client.Client{}, "")
		if wrong := s.Check(true); len(wrong) != 0 {
			t.Fatal(wrong)
		}
		if change(&s); len(s.Check(true)) != 1 {
			t.Errorf("%s: %v", name, s.Check(true))
		}
	}
	s := Defaults(&client.Client{}, "")
	if len(s.Check(false)) != 1 {
		t.Error("nobody is named, and that is fine")
	}
	if s.Anonymous = true; len(s.Check(false)) != 0 {
		t.Error("anonymous use needs a principal")
	}
}

func TestOperation(t *testing.T) {
	long := "POST /" + strings.Repeat("ü", 200)
	seen := map[string]string{}
	for _, name := range []string{"", "POST /v1/orders", strings.Repeat("x", 255), strings.Repeat("x", 256), strings.Repeat("x", 257), long, long + "x", "a\xff", "a\xfe"} {
		got := Operation(name)
		if len(got) > 255 || !utf8.ValidString(got) || len(name) <= 255 && utf8.ValidString(name) && got != name {
			t.Errorf("%q is the operation %q", name, got)
		}
		if other, there := seen[got]; there {
			t.Errorf("%q and %q are one operation", name, other)
		}
		seen[got] = name
	}
}
