package peer

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limiter lets one line through in a while, so that a stranger cannot fill the log.
type limiter struct {
	every time.Duration
	level slog.Level

	mu         sync.Mutex
	last       time.Time
	suppressed int
}

func (l *limiter) log(logger *slog.Logger, message string, attributes ...any) {
	l.mu.Lock()
	now := time.Now()
	if !l.last.IsZero() && now.Sub(l.last) < l.every {
		l.suppressed++
		l.mu.Unlock()
		return
	}
	suppressed := l.suppressed
	l.last, l.suppressed = now, 0
	l.mu.Unlock()
	if suppressed > 0 {
		attributes = append(attributes, "lines_like_this_left_out", suppressed)
	}
	logger.Log(context.Background(), l.level, message, attributes...)
}
