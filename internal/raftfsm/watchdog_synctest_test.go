package raftfsm

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// brokenLog is a log whose appends hang or fail from some moment on.
type brokenLog struct {
	durableLog
	mu   sync.Mutex
	hang chan struct{} // not nil: an append waits for it
	fail error
}

func (l *brokenLog) set(hang chan struct{}, fail error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hang, l.fail = hang, fail
}

func (l *brokenLog) StoreLogs(logs []*raft.Log) error {
	l.mu.Lock()
	hang, fail := l.hang, l.fail
	l.mu.Unlock()
	if hang != nil {
		<-hang
	}
	if fail != nil {
		return fail
	}
	return l.durableLog.StoreLogs(logs)
}

// breakable opens a group of one on a log that can be broken.
func (c *cluster) breakable(name string, fatal func(error)) (*Group, *brokenLog) {
	c.t.Helper()
	broken := &brokenLog{}
	cfg := c.config(name)
	cfg.Bootstrap, cfg.Fatal = c.voters, fatal
	cfg.openLog = func(dir string, options raftlog.Options) (durableLog, error) {
		log, err := openLog(dir, options)
		broken.durableLog = log
		return broken, err
	}
	g, err := Open(cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	c.groups[name] = g
	return g, broken
}

func TestAHungDiskIsFatalAfterTenTicks(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		fatal := make(chan error, 10)
		_, log := c.breakable("a", func(err error) { fatal <- err })
		g := c.leader()
		c.admit(g, 0, 3)

		// A slow disk is not a hung one.
		slow := make(chan struct{})
		log.set(slow, nil)
		time.AfterFunc(8*time.Second, func() { close(slow) })
		c.admit(g, 3, 4)
		log.set(nil, nil)
		time.Sleep(time.Minute)

		hung := make(chan struct{})
		log.set(hung, nil)
		began := time.Now()
		encoded, err := (&Entry{Term: g.Term(), Commands: commands(reserve(4))}).Encode()
		if err != nil {
			t.Fatal(err)
		}
		future := g.Propose(encoded, time.Second)
		err = <-fatal
		if took := time.Since(began); took < 9*time.Second || took > 10*time.Second {
			t.Errorf("fatal after %v", took)
		}
		if !strings.Contains(err.Error(), "disk hung: an append to the log") || !strings.Contains(err.Error(), g.cfg.Dir) {
			t.Errorf("fatal: %v", err)
		}
		if !g.IsLeader() {
			t.Error("raft did notice: the watchdog is not needed any more")
		}
		// Closing waits no longer than it may.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if err := g.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closed: %v", err)
		}
		close(hung)
		if err := g.Close(t.Context()); err != nil {
			t.Errorf("closed: %v", err)
		}
		_ = future.Error() // the log came back in time for this one
		if len(fatal) > 0 {
			t.Errorf("fatal again: %v", <-fatal)
		}
	})
}

func TestAFailedAppendIsFatal(t *testing.T) {
	base := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, base, "a")
		fatal := make(chan error, 10)
		_, log := c.breakable("a", func(err error) { fatal <- err })
		g := c.leader()
		broken := errors.New("no space left on device")
		log.set(nil, broken)
		_, err := propose(t, g, Entry{Term: g.Term(), Commands: commands(reserve(0))})
		if !errors.Is(err, broken) || Classify(err) != Unknown {
			t.Errorf("proposed: %v", err)
		}
		if err := <-fatal; !errors.Is(err, broken) || !strings.Contains(err.Error(), g.cfg.Dir) {
			t.Errorf("fatal: %v", err)
		}
		c.stopAll()
		if len(fatal) > 0 {
			t.Errorf("fatal again: %v", <-fatal)
		}
	})
}

func TestTheWatchdogWatchesTheState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fatal := make(chan error, 1)
		w := newWatchdog("dir", func(err error) { fatal <- err })
		w.beforeCommit()
		time.Sleep(9500 * time.Millisecond)
		w.afterCommit()
		time.Sleep(time.Minute)
		w.beforeCommit()
		if err := <-fatal; !strings.Contains(err.Error(), "a commit of the state") {
			t.Error(err)
		}
		w.afterCommit()
		w.close()
	})
}

// A read of the state that does not return, as of a page that the disk does not deliver, keeps
// the lock for which everybody waits. Nobody else would tell: Raft goes on leading, and the log
// on being written. It is not in a bubble, where time does not go on while a lock is waited for.
func TestTheWatchdogWatchesReadsOfTheState(t *testing.T) {
	c := newCluster(t, t.TempDir(), "a")
	c.fatal = func(string, error) {} // its own tick may be the eleventh
	c.start("a")
	g := c.leader()
	for name, hang := range map[string]func(read func()) error{
		"a view": func(read func()) error {
			return g.store.View(func(*store.Tx) error { read(); return nil })
		},
		"an update": func(read func()) error {
			_, err := g.store.Update(store.Position{Index: 1 << 40, Term: 1 << 40}, func(*store.Tx) error {
				read()
				return errors.New("nothing has changed")
			})
			return err
		},
	} {
		reading, hung, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			_ = hang(func() { close(reading); <-hung })
		}()
		<-reading
		if !g.watchdog.watches("a read of the state", 5*time.Second) {
			t.Errorf("%s that does not return is watched by nobody", name)
		}
		for range watchTicksMax - 1 {
			g.watchdog.tick()
		}
		if name, is := g.watchdog.tick(); !is || name != "a read of the state" {
			t.Errorf("after ten ticks %q has hung: %v", name, is)
		}
		if !g.IsLeader() {
			t.Error("raft did notice")
		}
		close(hung)
		<-ended
		c.admit(g, len(name), len(name)+1)
	}
	c.stopAll()
}

// watches waits until a call of the name is under way.
func (w *watchdog) watches(name string, within time.Duration) bool {
	for began := time.Now(); time.Since(began) < within; time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		for call := range w.calls {
			if call.name == name {
				w.mu.Unlock()
				return true
			}
		}
		w.mu.Unlock()
	}
	return false
}

// TestCallsAfterTheLogIsClosed are answered, and are not fatal: raft reads the age of
// the log from a goroutine that it does not wait for.
func TestCallsAfterTheLogIsClosed(t *testing.T) {
	dir := t.TempDir()
	log, err := raftlog.Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	w := newWatchdog(dir, func(error) {})
	defer w.close()
	l := &logStore{log: log, watchdog: w, fatal: func(err error) { t.Errorf("fatal: %v", err) }}
	if err := errors.Join(l.StoreLog(&raft.Log{Index: 1, Term: 1}), l.Set([]byte("k"), []byte("v"))); err != nil {
		t.Fatal(err)
	}
	if value, err := l.Get([]byte("k")); err != nil || string(value) != "v" {
		t.Errorf("%q, %v", value, err)
	}
	if err := l.GetLog(2, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Errorf("an entry that is not there: %v", err)
	}
	if log.Bytes() != raftlog.SegmentBytes {
		t.Errorf("%d bytes", log.Bytes())
	}
	if err := errors.Join(l.close(), l.close()); err != nil {
		t.Fatal(err)
	}
	_, first := l.FirstIndex()
	_, last := l.LastIndex()
	_, number := l.GetUint64([]byte("k"))
	for _, err := range []error{
		first, last, number, l.GetLog(1, &raft.Log{}), l.StoreLog(&raft.Log{Index: 2}), l.DeleteRange(1, 1),
		l.Set(nil, nil), l.SetUint64(nil, 1),
	} {
		if !errors.Is(err, errLogClosed) {
			t.Errorf("error %v", err)
		}
	}
	// The directory can be opened again at once: the metadata's lock is gone.
	log, err = raftlog.Open(dir, testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if last, err := log.LastIndex(); err != nil || last != 1 || log.Bytes() != raftlog.SegmentBytes {
		t.Errorf("last %d, %v, %d bytes", last, err, log.Bytes())
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
}
