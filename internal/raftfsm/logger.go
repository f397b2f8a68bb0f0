package raftfsm

import (
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// repeatAfter is how often the same warning is passed on: raft reports every failed
// heartbeat to a server that is down.
const repeatAfter = 10 * time.Second

// slogAdapter is raft's logger on top of ours. All below a warning is Debug.
type slogAdapter struct {
	logger  *slog.Logger
	name    string
	implied []any
	repeats *repeats
}

var _ hclog.Logger = (*slogAdapter)(nil)

func newSlogAdapter(logger *slog.Logger) *slogAdapter {
	return &slogAdapter{logger: logger, repeats: &repeats{since: make(map[string]*repeated)}}
}

// repeats holds back what has been said before.
type repeats struct {
	mu    sync.Mutex
	since map[string]*repeated
}

type repeated struct {
	last time.Time
	held int
}

// repeatsMax bounds the messages that are remembered. Raft has fewer; more would
// mean that something other than their peer varies in them.
const repeatsMax = 256

// pass reports whether the message is to be passed on, and how many of its like
// were held back.
func (r *repeats) pass(key string, now time.Time) (held int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen := r.since[key]
	if seen == nil {
		if len(r.since) >= repeatsMax {
			clear(r.since)
		}
		r.since[key] = &repeated{last: now}
		return 0, true
	}
	if now.Sub(seen.last) < repeatAfter {
		seen.held++
		return 0, false
	}
	held = seen.held
	seen.last, seen.held = now, 0
	return held, true
}

// Log implements [hclog.Logger].
func (a *slogAdapter) Log(level hclog.Level, message string, arguments ...any) {
	ours := slogLevel(level)
	if message == startsElection && !hadLeader(arguments) {
		ours = slog.LevelDebug
	}
	if !a.logger.Enabled(context.Background(), ours) {
		return
	}
	attributes := make([]any, 0, len(arguments)+2)
	key := message
	for i, argument := range arguments {
		if format, ok := argument.(hclog.Format); ok && len(format) > 0 {
			argument = fmt.Sprintf(fmt.Sprint(format[0]), format[1:]...)
		}
		if i%2 == 1 && arguments[i-1] == "peer" {
			key = fmt.Sprint(message, argument)
		}
		attributes = append(attributes, argument)
	}
	if ours >= slog.LevelWarn {
		held, ok := a.repeats.pass(key, time.Now())
		if !ok {
			return
		}
		if held > 0 {
			attributes = append(attributes, "held_back", held)
		}
	}
	a.logger.Log(context.Background(), ours, message, attributes...)
}

// startsElection is what raft warns of when it has not heard from a leader for long, and
// lastLeader names the one it had. Where it has had none since it was started, none is lost: that
// is how a start goes on, and for a node by itself the only way.
const (
	startsElection = "heartbeat timeout reached, starting election"
	lastLeader     = "last-leader-id"
)

func hadLeader(arguments []any) bool {
	for i := 1; i < len(arguments); i += 2 {
		if arguments[i-1] == lastLeader {
			return fmt.Sprint(arguments[i]) != ""
		}
	}
	return true // as far as is known here
}

// slogLevel turns raft's levels into ours. What raft tells for information are the
// steps of its own work: the node tells who leads by itself.
func slogLevel(level hclog.Level) slog.Level {
	switch level {
	case hclog.Error:
		return slog.LevelError
	case hclog.Warn:
		return slog.LevelWarn
	default:
		return slog.LevelDebug
	}
}

// Trace implements [hclog.Logger].
func (a *slogAdapter) Trace(message string, arguments ...any) {
	a.Log(hclog.Trace, message, arguments...)
}

// Debug implements [hclog.Logger].
func (a *slogAdapter) Debug(message string, arguments ...any) {
	a.Log(hclog.Debug, message, arguments...)
}

// Info implements [hclog.Logger].
func (a *slogAdapter) Info(message string, arguments ...any) {
	a.Log(hclog.Info, message, arguments...)
}

// Warn implements [hclog.Logger].
func (a *slogAdapter) Warn(message string, arguments ...any) {
	a.Log(hclog.Warn, message, arguments...)
}

// Error implements [hclog.Logger].
func (a *slogAdapter) Error(message string, arguments ...any) {
	a.Log(hclog.Error, message, arguments...)
}

func (a *slogAdapter) enabled(level slog.Level) bool {
	return a.logger.Enabled(context.Background(), level)
}

// IsTrace implements [hclog.Logger].
func (a *slogAdapter) IsTrace() bool { return false }

// IsDebug implements [hclog.Logger].
func (a *slogAdapter) IsDebug() bool { return a.enabled(slog.LevelDebug) }

// IsInfo implements [hclog.Logger].
func (a *slogAdapter) IsInfo() bool { return a.IsDebug() }

// IsWarn implements [hclog.Logger].
func (a *slogAdapter) IsWarn() bool { return a.enabled(slog.LevelWarn) }

// IsError implements [hclog.Logger].
func (a *slogAdapter) IsError() bool { return a.enabled(slog.LevelError) }

// ImpliedArgs implements [hclog.Logger].
func (a *slogAdapter) ImpliedArgs() []any { return a.implied }

// With implements [hclog.Logger].
func (a *slogAdapter) With(arguments ...any) hclog.Logger {
	next := *a
	next.logger = a.logger.With(arguments...)
	next.implied = append(append([]any(nil), a.implied...), arguments...)
	return &next
}

// Name implements [hclog.Logger].
func (a *slogAdapter) Name() string { return a.name }

// Named implements [hclog.Logger]. The name is not passed on: shard and component
// are attributes of the logger already.
func (a *slogAdapter) Named(name string) hclog.Logger {
	if a.name != "" {
		name = a.name + "." + name
	}
	return a.ResetNamed(name)
}

// ResetNamed implements [hclog.Logger].
func (a *slogAdapter) ResetNamed(name string) hclog.Logger {
	next := *a
	next.name = name
	return &next
}

// SetLevel implements [hclog.Logger]. The level is that of the logger beneath.
func (a *slogAdapter) SetLevel(hclog.Level) {}

// GetLevel implements [hclog.Logger].
func (a *slogAdapter) GetLevel() hclog.Level {
	switch {
	case a.IsDebug():
		return hclog.Debug
	case a.IsWarn():
		return hclog.Warn
	default:
		return hclog.Error
	}
}

// StandardLogger implements [hclog.Logger].
func (a *slogAdapter) StandardLogger(*hclog.StandardLoggerOptions) *log.Logger {
	return slog.NewLogLogger(a.logger.Handler(), slog.LevelInfo)
}

// StandardWriter implements [hclog.Logger].
func (a *slogAdapter) StandardWriter(options *hclog.StandardLoggerOptions) io.Writer {
	return a.StandardLogger(options).Writer()
}
