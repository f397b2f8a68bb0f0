package raftfsm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/raftlog"
	"github.com/atmostonce/coordinator/internal/store"
)

// The names in a shard's directory.
const (
	stateName    = "state.db"
	logName      = "log"
	snapshotName = "snapshots"
)

// What raft is told beside the timing.
const (
	// appendEntriesMax bounds the entries of one message, and of one append by the
	// leader: with fewer, a batch of proposals is not one sync.
	appendEntriesMax = 64
	// snapshotInterval is how often, up to twice as seldom, raft compares the log
	// with its count of entries.
	snapshotInterval = time.Minute
)

// Open starts a replica. It returns when the replica takes part in its group, not
// when that has a leader. An error names the file or directory that it is about.
func Open(cfg GroupConfig) (*Group, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		if cfg.Layer != nil {
			err = errors.Join(err, cfg.Layer.Close())
		}
		return nil, err
	}
	var once sync.Once
	fatal := cfg.Fatal
	cfg.Fatal = func(err error) { once.Do(func() { fatal(advise(fmt.Errorf("%s: %w", cfg.Dir, err))) }) }

	g := &Group{
		cfg:        cfg,
		notify:     make(chan bool, 1),
		leadership: make(chan bool, 1),
		kick:       make(chan struct{}, 1),
		rotated:    make(chan struct{}, 1),
		closing:    make(chan struct{}),
		down:       make(chan struct{}),
		closed:     make(chan struct{}),
	}
	g.watchdog = newWatchdog(cfg.Dir, cfg.Fatal)
	if err := g.open(); err != nil {
		return nil, errors.Join(adviseAtStart(err), g.abandon())
	}
	g.workers.Go(g.announce)
	g.workers.Go(g.kicks)
	g.workers.Go(g.watchLeader)
	g.workers.Go(g.trim)
	g.workers.Go(func() { g.watchdog.patrol("a read of the state", g.store.Pass, g.down) })
	return g, nil
}

// open does it step by step; what it has opened is in the group when it fails.
func (g *Group) open() error {
	if err := g.openDirectories(); err != nil {
		return err
	}
	if err := g.openState(); err != nil {
		return err
	}
	logger := newSlogAdapter(g.cfg.Logger)
	log, err := g.cfg.openLog(filepath.Join(g.cfg.Dir, logName), raftlog.Options{
		Logger: g.cfg.Logger, WALLogger: logger, Create: g.cfg.Create,
		Rotated: func() { signal(g.rotated) }, Ahead: g.sendAhead,
	})
	if err != nil {
		return err
	}
	g.log = &logStore{log: log, watchdog: g.watchdog, fatal: g.cfg.Fatal, lacked: g.lacked, applied: func() (index, installed uint64) {
		return g.store.Applied().Index, g.store.InstalledAt()
	}}
	if err := g.log.noteTerm(); err != nil {
		return fmt.Errorf("%s: %w", g.cfg.Dir, err)
	}
	if err := checkOwner(g.cfg.Dir, g.log, g.cfg.Identification); err != nil {
		return err
	}
	if err := reconcile(g.cfg.Dir, g.log, g.store, g.cfg.Logger); err != nil {
		return err
	}
	snapshots, err := openSnapshots(filepath.Join(g.cfg.Dir, snapshotName), g.store, g.log)
	if err != nil {
		return err
	}
	if err := noteOwner(g.log, g.cfg.Identification); err != nil {
		return err
	}
	if err := g.bootstrap(); err != nil {
		return err
	}
	if err := g.notePlaces(); err != nil {
		return err
	}
	g.fsm = &fsm{store: g.store, snapshots: snapshots, fatal: g.cfg.Fatal}
	g.transport = newTransport(&g.cfg, logger, g.log.accept, &g.log.terms)
	g.raft, err = g.start(snapshots, logger)
	if err != nil {
		return err
	}
	g.transport.runs.begin(g.raft)
	signal(g.rotated) // the log may have grown too large before this start
	return nil
}

// sendAhead hands what the log is about to write to the transport, once there is one.
func (g *Group) sendAhead(before store.Position, entries []*raft.Log) {
	if g.transport != nil {
		g.transport.out.sendAhead(before, entries)
	}
}

func (g *Group) openDirectories() error {
	for _, name := range []string{"", logName} {
		dir := filepath.Join(g.cfg.Dir, name)
		if g.cfg.Create {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				return err
			}
		}
		switch info, err := os.Stat(dir); {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s is missing, and with it what this node had promised: "+disk.Advice, dir)
		case err != nil:
			return err
		case !info.IsDir():
			return fmt.Errorf("%s is not a directory", dir)
		}
	}
	if !g.cfg.Create {
		return nil
	}
	// A power cut must not take the directory, and with it a vote, after it was cast.
	return errors.Join(disk.SyncDirectory(g.cfg.Dir), disk.SyncDirectory(filepath.Dir(g.cfg.Dir)))
}

func (g *Group) openState() error {
	state := g.cfg.Store
	state.Path = filepath.Join(g.cfg.Dir, stateName)
	state.Create = g.cfg.Create
	state.Identification = g.cfg.Identification
	state.Logger = g.cfg.Logger
	state.Fatal = g.cfg.Fatal
	state.CommitObserver = store.CommitObserver{Before: g.beforeCommit, After: g.afterCommit}
	opened, err := store.Open(state)
	if err != nil {
		return err
	}
	g.store = opened
	return nil
}

// start starts raft. It panics about a log entry that it cannot read, which here is
// an error like any other of a damaged file.
func (g *Group) start(snapshots *snapshotStore, logger *slogAdapter) (node *raft.Raft, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			err = fmt.Errorf("starting raft in %s: %w", g.cfg.Dir, disk.Unreadable{Cause: fmt.Errorf("%v", recovered)})
		}
	}()
	config := raft.DefaultConfig()
	config.LocalID = g.cfg.Self
	config.HeartbeatTimeout = g.cfg.Timing.Heartbeat
	config.ElectionTimeout = g.cfg.Timing.Election
	config.LeaderLeaseTimeout = g.cfg.Timing.Lease
	config.CommitTimeout = g.cfg.Timing.Commit
	config.MaxAppendEntries = appendEntriesMax
	config.BatchApplyCh = true
	config.ShutdownOnRemove = false
	config.TrailingLogs = g.cfg.limits.trailing
	config.SnapshotInterval = snapshotInterval
	config.SnapshotThreshold = g.cfg.limits.snapshotEntries
	config.NoSnapshotRestoreOnStart = true
	config.NoLegacyTelemetry = true
	config.NotifyCh = g.notify
	config.Logger = logger
	node, err = raft.NewRaft(config, g.fsm, g.log, g.log, snapshots, g.transport)
	if err != nil {
		return nil, fmt.Errorf("starting raft in %s: %w", g.cfg.Dir, err)
	}
	return node, nil
}

// abandon closes what was opened before the start failed.
func (g *Group) abandon() error {
	var errs []error
	if g.transport != nil {
		errs = append(errs, g.transport.Close())
	} else { // which would have closed it
		errs = append(errs, g.cfg.Layer.Close())
	}
	if g.log != nil {
		errs = append(errs, g.log.close())
	}
	if g.store != nil {
		errs = append(errs, g.store.Close())
	}
	g.watchdog.close()
	return errors.Join(errs...)
}

// announce passes on changes of leadership: always at once, because raft's main loop
// waits for it, and only the newest.
func (g *Group) announce() {
	for {
		select {
		case leads := <-g.notify:
			select {
			case <-g.leadership:
			default:
			}
			g.leadership <- leads // it is empty: nobody else fills it
		case <-g.down:
			return
		}
	}
}

// kicks passes on kicks. Raft's own verdict is not waited for: it counts answers to
// requests that were sent before it was asked.
func (g *Group) kicks() {
	for {
		select {
		case <-g.kick:
			g.raft.VerifyLeader()
		case <-g.closing:
			return
		}
	}
}
