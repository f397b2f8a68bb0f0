package raftfsm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/disk"
)

func TestTimingValidate(t *testing.T) {
	if err := DefaultTiming().Validate(); err != nil {
		t.Error(err)
	}
	if (Timing{}).WithDefaults() != DefaultTiming() {
		t.Error("the zero value is not the default")
	}
	if got := (Timing{Heartbeat: time.Second, Election: time.Second}).WithDefaults(); got.Heartbeat != time.Second || got.Lease != DefaultTiming().Lease {
		t.Errorf("%+v", got)
	}
	for field, change := range map[string]func(*Timing){
		"Heartbeat": func(t *Timing) { t.Heartbeat = time.Millisecond },
		"Election":  func(t *Timing) { t.Election = t.Heartbeat - 1 },
		"Lease":     func(t *Timing) { t.Lease = t.Heartbeat + 1 },
		"Commit":    func(t *Timing) { t.Commit = -1 },
		"Call":      func(t *Timing) { t.Call = 1 },
	} {
		timing := DefaultTiming()
		change(&timing)
		if err := timing.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// closingLayer notes that it was closed.
type closingLayer struct {
	raft.StreamLayer
	closed *bool
}

func (l closingLayer) Close() error {
	*l.closed = true
	return l.StreamLayer.Close()
}

func TestOpenRefuses(t *testing.T) {
	n := newNetwork()
	good := func() GroupConfig {
		return GroupConfig{
			Dir: filepath.Join(t.TempDir(), "shard"), Identification: testIdentification, Create: true,
			Self: "a", Layer: n.layer("a"), Fatal: func(err error) { t.Errorf("fatal: %v", err) }, Store: storeConfig(""),
		}
	}
	for want, change := range map[string]func(*GroupConfig){
		"Dir":      func(c *GroupConfig) { c.Dir = "" },
		"Self":     func(c *GroupConfig) { c.Self = "" },
		"Layer":    func(c *GroupConfig) { c.Layer = nil },
		"Fatal":    func(c *GroupConfig) { c.Fatal = nil },
		"no voter": func(c *GroupConfig) { c.Bootstrap = &raft.Configuration{} },
		"twice": func(c *GroupConfig) {
			c.Bootstrap = Voters(raft.Server{ID: "a", Address: "a"}, raft.Server{ID: "a", Address: "b"})
		},
		"address": func(c *GroupConfig) { c.Bootstrap = Voters(raft.Server{ID: "a"}) },
		`"x"`: func(c *GroupConfig) {
			c.Bootstrap = Voters(raft.Server{ID: "a", Address: "x"}, raft.Server{ID: "b", Address: "x"})
		},
		"Election":                      func(c *GroupConfig) { c.Timing.Election = time.Millisecond },
		"shard is missing, and with it": func(c *GroupConfig) { c.Create = false },
		"log is missing, and with it": func(c *GroupConfig) {
			c.Create = false
			must(t, os.MkdirAll(c.Dir, 0o700))
		},
		"ClusterID": func(c *GroupConfig) { c.ClusterID = "" },
		"state.db":  func(c *GroupConfig) { write(t, filepath.Join(c.Dir, stateName), "not a state") },
		"wal-meta.db": func(c *GroupConfig) {
			write(t, filepath.Join(c.Dir, logName, "wal-meta.db"), strings.Repeat("not a log ", 10_000))
		},
		"snapshots": func(c *GroupConfig) { write(t, filepath.Join(c.Dir, snapshotName), "in the way") },
		"directory": func(c *GroupConfig) { write(t, filepath.Join(c.Dir, logName), "in the way") },
	} {
		cfg := good()
		closed := false
		cfg.Layer = closingLayer{cfg.Layer, &closed}
		change(&cfg)
		g, err := Open(cfg)
		if err == nil {
			_ = g.Close(t.Context())
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if cfg.Layer != nil && !closed {
			t.Errorf("%s: the layer was left open", want)
		}
	}
}

// Whatever is found to be damaged or lost when a replica starts is told with what to do, once: but
// for what may be of a newer version, and what no file is at fault for.
func TestDamageComesWithAdvice(t *testing.T) {
	n := newNetwork()
	good := func(t *testing.T) GroupConfig {
		cfg := GroupConfig{
			Dir: filepath.Join(t.TempDir(), "shard"), Identification: testIdentification, Create: true,
			Self: "a", Layer: n.layer("a"), Fatal: func(err error) { t.Errorf("fatal: %v", err) }, Store: storeConfig(""),
			Bootstrap: Voters(raft.Server{ID: "a", Address: "a"}),
		}
		g, err := Open(cfg)
		must(t, err)
		must(t, g.Close(t.Context()))
		cfg.Create, cfg.Bootstrap, cfg.Layer = false, nil, n.layer("a")
		return cfg
	}
	for name, test := range map[string]struct {
		advised bool
		damage  func(*testing.T, *GroupConfig)
	}{
		"no directory":      {true, func(t *testing.T, c *GroupConfig) { must(t, os.RemoveAll(c.Dir)) }},
		"no log":            {true, func(t *testing.T, c *GroupConfig) { must(t, os.RemoveAll(filepath.Join(c.Dir, logName))) }},
		"no state":          {true, func(t *testing.T, c *GroupConfig) { must(t, os.Remove(filepath.Join(c.Dir, stateName))) }},
		"no index":          {true, func(t *testing.T, c *GroupConfig) { must(t, os.Remove(filepath.Join(c.Dir, logName, "wal-meta.db"))) }},
		"no end":            {true, func(t *testing.T, c *GroupConfig) { must(t, os.Remove(filepath.Join(c.Dir, logName, "end"))) }},
		"a state of text":   {true, func(t *testing.T, c *GroupConfig) { write(t, filepath.Join(c.Dir, stateName), "text") }},
		"an index of text":  {true, func(t *testing.T, c *GroupConfig) { write(t, filepath.Join(c.Dir, logName, "wal-meta.db"), "text") }},
		"an end of text":    {true, func(t *testing.T, c *GroupConfig) { write(t, filepath.Join(c.Dir, logName, "end"), "text") }},
		"another shard's":   {true, func(_ *testing.T, c *GroupConfig) { c.Shards++ }},
		"a file in the way": {false, func(t *testing.T, c *GroupConfig) { write(t, filepath.Join(c.Dir, logName, "x.wal"), "text") }},
		"no right to a file": {false, func(_ *testing.T, c *GroupConfig) {
			c.Store.OpenFile = func(string, int, os.FileMode) (*os.File, error) { return nil, os.ErrPermission }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := good(t)
			test.damage(t, &cfg)
			_, err := Open(cfg)
			if err == nil {
				t.Fatal("it was opened")
			}
			said := 0
			if test.advised {
				said = 1
			}
			if strings.Count(err.Error(), disk.Advice) != said || !strings.Contains(err.Error(), cfg.Dir) && test.advised {
				t.Errorf("%v", err)
			}
		})
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
