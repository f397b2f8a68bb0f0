package client

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// counter counts what a log is told, by its text.
type counter struct{ busy, late, failed, closed, named atomic.Int64 }

func (c *counter) Write(p []byte) (int, error) {
	for text, n := range map[string]*atomic.Int64{
		errBusy.Error(): &c.busy, errLate.Error(): &c.late, "no luck": &c.failed, ErrClosed.Error(): &c.closed,
		` principal=me operation="POST /hold" key="\"a\\nb\"" `: &c.named} {
		if strings.Contains(string(p), text) {
			n.Add(1)
		}
	}
	return len(p), nil
}

// Giving back is bounded in number and in time, and what is not given back is told.
func TestGivingBackIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told counter
		c, err := Dial([]string{"127.0.0.1:1"}, WithLogger(slog.New(slog.NewTextHandler(&told, nil))), WithSettleTimeout(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		of := Identity{Principal: "me", Operation: "POST /hold", Key: "a\nb"}
		var running, most, ran atomic.Int64
		for range givenBackMost + 100 {
			c.giveBack(t.Context(), of, func(ctx context.Context) error {
				defer running.Add(-1)
				most.Store(max(most.Load(), running.Add(1)))
				ran.Add(1)
				<-ctx.Done()
				return errors.New("no luck")
			})
		}
		synctest.Wait()
		if most.Load() != givingBackMost || told.busy.Load() != 100 {
			t.Errorf("%d at a time, %d refused", most.Load(), told.busy.Load())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		// Each had its minute since it was asked for, and not since its turn came.
		if failed, late := told.failed.Load(), told.late.Load(); running.Load() != 0 || failed != ran.Load() || failed+late != givenBackMost {
			t.Errorf("%d are running; %d ran, %d failed, %d were late", running.Load(), ran.Load(), failed, late)
		}
		// There is room again.
		done := false
		c.giveBack(t.Context(), of, func(context.Context) error { done = true; return nil })
		synctest.Wait()
		if !done || told.busy.Load() != 100 {
			t.Error("no room")
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		c.giveBack(t.Context(), of, func(context.Context) error { t.Error("it runs after Close"); return nil })
		if told.closed.Load() != 1 || len(c.waiting) != 0 || len(c.calling) != 0 {
			t.Errorf("%d told, %d wait, %d call", told.closed.Load(), len(c.waiting), len(c.calling))
		}
		// Whoever has to settle one learns which.
		if named := told.named.Load(); named != told.busy.Load()+told.late.Load()+told.failed.Load()+1 {
			t.Errorf("%d are named", named)
		}
	})
}
