package admit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
	"github.com/atmostonce/coordinator/middleware/internal/verdict"
	"github.com/atmostonce/coordinator/test/cluster"
)

// logged has the lines of a log, as text and taken apart.
type logged struct{ bytes.Buffer }

func (l *logged) to(s *Settings) {
	s.Logger = slog.New(slog.NewJSONHandler(&l.Buffer, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// logging are settings for one node, with a log.
func logging(t *testing.T) (*cluster.Cluster, *Settings, *logged) {
	t.Helper()
	c, log := nodes(t, 1), new(logged)
	s := settings(t, c, cluster.ClientHost)
	log.to(s)
	return c, s, log
}

// take returns the lines since the last time.
func (l *logged) take(t *testing.T) (lines []map[string]any) {
	t.Helper()
	for decoder := json.NewDecoder(&l.Buffer); decoder.More(); {
		var line map[string]any
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, line)
	}
	return lines
}

// one returns the only line since, which must have these attributes.
func (l *logged) one(t *testing.T, level, text string, attributes ...string) {
	t.Helper()
	lines := l.take(t)
	if len(lines) != 1 || lines[0]["level"] != level || !strings.Contains(lines[0]["msg"].(string), text) {
		t.Errorf("the log says %v, want one line at %s with %q", lines, level, text)
		return
	}
	for pair := range slices.Chunk(attributes, 2) {
		if lines[0][pair[0]] != pair[1] {
			t.Errorf("%v: %s is not %q", lines[0], pair[0], pair[1])
		}
	}
}

// Whoever has to settle a record learns from the log which one it is, whatever the handler did.
func TestTheLogNamesWhatIsLeftToLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log logged
		for _, kind := range []string{"request", "call"} {
			s := settings(t, nodes(t, 1), cluster.ClientHost)
			s.OnLapse, s.Kind, s.Namespace = client.Hold, kind, "desk"
			log.to(s)
			for name, script := range map[string]*script{
				"answers": {verdict: verdict.Uncertain},
				"panics":  {run: func(context.Context) { panic(errors.New("boom")) }},
				"odd\n":   {verdict: verdict.Uncertain},
			} {
				attempt, err := s.Ask(t.Context(), question(name))
				if err != nil {
					t.Fatal(err)
				}
				func() {
					defer func() {
						if panicked := recover(); (panicked != nil) != (name == "panics") {
							t.Errorf("%s: %v", name, panicked)
						}
					}()
					attempt.Run(t.Context(), script)
				}()
				status, shown := "as the script says", name
				switch name {
				case "panics":
					status = "it panicked"
				case "odd\n":
					shown = `"odd\n"`
				}
				log.one(t, "WARN", "what came of a guarded "+kind+" is unknown", "namespace", "desk", "principal", "me", "operation", "op",
					"key", shown, "status", status, "on_lapse", "hold")
			}
		}
	})
}

// What is released needs no settling, and what cannot be recorded does.
func TestTheLogNamesWhatIsNotRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, log := logging(t)
		attempt, err := s.Ask(t.Context(), question("released"))
		if err != nil {
			t.Fatal(err)
		}
		attempt.Run(t.Context(), &script{verdict: verdict.Release})
		if lines := log.take(t); len(lines) > 0 {
			t.Errorf("the log says %v", lines)
		}
		s.HandlerTimeout = time.Minute
		if attempt, err = s.Ask(t.Context(), question("late")); err != nil {
			t.Fatal(err)
		}
		go func() {
			defer func() { _ = recover() }()
			attempt.Run(t.Context(), &script{run: func(context.Context) { panic("boom") }})
		}()
		synctest.Wait()
		log.one(t, "ERROR", "a guarded handler panicked", "principal", "me", "key", "late")
		s.HandlerTimeout = 0
		if attempt, err = s.Ask(t.Context(), question("lost")); err != nil {
			t.Fatal(err)
		}
		attempt.Run(t.Context(), &script{verdict: verdict.Store, run: func(context.Context) {
			c.Crash("n1")
		}})
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		log.one(t, "ERROR", "what came of a guarded request could not be recorded", "principal", "me", "operation", "op", "key", "lost", "on_lapse", "reopen")
	})
}

// A caller that hangs up is no fault of the coordinator's.
func TestTheLogOfARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, s, log := logging(t)
		if _, err := s.Ask(t.Context(), question("first")); err != nil {
			t.Fatal(err)
		}
		gone, hangUp := context.WithCancel(t.Context())
		hangUp()
		attempt, err := s.Ask(gone, question("k"))
		refused(t, attempt, err, refusal.Unavailable)
		log.one(t, "DEBUG", "the caller of a keyed request was gone before the coordinator had answered", "key", "k", "principal", "me")
		c.Network.Cut(cluster.ClientHost, "n1")
		gone, hangUp = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, hangUp)
		attempt, err = s.Ask(gone, question("k"))
		refused(t, attempt, err, refusal.Unavailable)
		log.one(t, "DEBUG", "the caller of a keyed request was gone", "key", "k")
		hasted, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		attempt, err = s.Ask(hasted, question("k"))
		refused(t, attempt, err, refusal.Unavailable)
		log.one(t, "WARN", "a keyed request was refused: its own deadline came before the coordinator's answer", "key", "k")
		attempt, err = s.Ask(t.Context(), question("k"))
		refused(t, attempt, err, refusal.Unavailable)
		log.one(t, "WARN", "a keyed request was refused: the coordinator does not admit it", "key", "k", "operation", "op")
		// Who hangs up while a node is known to be away hears of that, if nobody else does.
		c.StopNode("n1")
		c.Network.HealAll()
		gone, hangUp = context.WithCancel(t.Context())
		time.AfterFunc(time.Second, hangUp)
		attempt, err = s.Ask(gone, question("k"))
		refused(t, attempt, err, refusal.Unavailable)
		log.one(t, "WARN", "the coordinator does not admit it", "key", "k")
	})
}

// due is a context whose deadline has come, and whose timer has not.
type due struct{ context.Context }

func (due) Deadline() (time.Time, bool) { return time.Now(), true }

// A deadline has come when it has, and not when its timer says so.
func TestADeadlineThatHasComeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone, hangUp := context.WithCancel(t.Context())
		hangUp()
		ahead, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
		defer cancel()
		for want, ctx := range map[error]context.Context{
			context.DeadlineExceeded: due{t.Context()}, context.Canceled: due{gone}, nil: ahead,
		} {
			if err := ended(ctx); !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
	})
}
