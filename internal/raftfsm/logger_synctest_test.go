package raftfsm

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

func TestLoggerPassesOnAndHoldsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		logger := newSlogAdapter(slog.New(slog.NewTextHandler(&out, nil)))
		lines := func() string {
			defer out.Reset()
			return out.String()
		}
		logger.Debug("unheard")
		logger.Trace("unheard")
		logger.Info("unheard")
		if got := lines(); got != "" {
			t.Errorf("%q", got)
		}
		logger.With("shard", 3).Named("x").Warn("some servers", "servers", hclog.Fmt("%+v", []int{1, 2}))
		if got := lines(); !strings.Contains(got, "level=WARN") || !strings.Contains(got, `servers="[1 2]"`) || !strings.Contains(got, "shard=3") {
			t.Errorf("%q", got)
		}
		logger.Error("failed to heartbeat to", "peer", "b", "error", "refused")
		logger.Error("failed to heartbeat to", "peer", "c", "error", "refused")
		for range 5 {
			time.Sleep(time.Second)
			logger.Error("failed to heartbeat to", "peer", "b", "error", "refused")
		}
		if got := lines(); strings.Count(got, "peer=b") != 1 || strings.Count(got, "peer=c") != 1 {
			t.Errorf("%q", got)
		}
		time.Sleep(repeatAfter)
		logger.Error("failed to heartbeat to", "peer", "b", "error", "refused")
		if got := lines(); strings.Count(got, "level=ERROR") != 1 || !strings.Contains(got, "held_back=5") {
			t.Errorf("%q", got)
		}
		for i := range 3 * repeatsMax {
			logger.Warn(fmt.Sprint("message ", i))
		}
		if n := len(logger.repeats.since); n > repeatsMax {
			t.Errorf("%d messages are remembered", n)
		}
		out.Reset()
		logger.Warn(startsElection, "last-leader-addr", raft.ServerAddress(""), lastLeader, raft.ServerID(""))
		if got := lines(); got != "" {
			t.Errorf("a warning of a start that is as it should be: %q", got)
		}
		logger.Warn(startsElection, "last-leader-addr", raft.ServerAddress("b:1"), lastLeader, raft.ServerID("b"))
		if got := lines(); strings.Count(got, "level=WARN") != 1 {
			t.Errorf("a leader that is lost: %q", got)
		}
		if logger.GetLevel() != hclog.Warn || logger.IsDebug() || logger.IsInfo() || !logger.IsWarn() || !logger.IsError() || logger.IsTrace() {
			t.Error("levels")
		}
		out.Reset()
		logger.StandardLogger(nil).Print("from elsewhere")
		if got := lines(); !strings.Contains(got, "from elsewhere") {
			t.Errorf("%q", got)
		}
	})
}
