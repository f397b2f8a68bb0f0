package raftfsm

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
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

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
