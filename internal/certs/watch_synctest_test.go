package certs

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Told is a log that another goroutine writes.
type Told struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements [io.Writer].
func (l *Told) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// Take returns what has come since the last time.
func (l *Told) Take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// A look that hangs is told once, keeps no stop waiting, and counts when it has ended.
func TestALookThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &Told{}
		k := &Keeper{logger: slog.New(slog.NewTextHandler(log, nil))}
		k.kept.Store(&kept{&material{}, &contents{}})
		ends := make(chan struct{})
		look := func() (bool, error) { <-ends; return true, nil }
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); k.watch(ctx, look) }()
		after := func(d time.Duration) string {
			time.Sleep(d)
			synctest.Wait()
			return log.Take()
		}
		if told := after(LookEvery); told != "" {
			t.Errorf("at its beginning: %s", told)
		}
		if told := after(LookEvery); !strings.Contains(told, "takes longer than 10s") {
			t.Errorf("after %v: %s", LookEvery, told)
		}
		if told := after(3 * LookEvery); told != "" {
			t.Errorf("told again: %s", told)
		}
		ends <- struct{}{}
		if told := after(time.Second); !strings.Contains(told, "were read again") {
			t.Errorf("at its end: %s", told)
		}
		if told := after(2 * LookEvery); !strings.Contains(told, "takes longer") {
			t.Errorf("the next that hangs: %s", told)
		}
		cancel()
		<-done
		close(ends)
	})
}
