package store

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// Errors that callers tell apart. They are wrapped with the file's name and what
// was found.
var (
	// ErrClosed is returned by every call after [Store.Close].
	ErrClosed = errors.New("the store is closed")
	// ErrFailed is returned by every call after a write, a sync or a read of the
	// state file has failed.
	ErrFailed = errors.New("the store has failed")
	// ErrLocked says that another process has the state file open.
	ErrLocked = errors.New("is in use by another process")
	// ErrNotExist says that there is no state file and none was to be created.
	ErrNotExist error = missing{}
	// ErrForeign says that the file is not a state file, or of a version that is
	// not known here.
	ErrForeign = errors.New("is not a state file of a known version")
	// ErrVersion says that the file is of a version that is not known here. It wraps
	// [ErrForeign].
	ErrVersion = fmt.Errorf("%w", ErrForeign)
	// ErrCorrupt says that the file is a state file and damaged.
	ErrCorrupt = errors.New("is damaged")
	// ErrIdentification says that the file belongs to another cluster or shard.
	ErrIdentification = errors.New("belongs elsewhere")
	// ErrReadOnly says that a transaction of [Store.View] was asked to write.
	ErrReadOnly = errors.New("the transaction is for reading only")
)

// missing is an [os.ErrNotExist] in fewer words.
type missing struct{}

func (missing) Error() string { return "is missing" }
func (missing) Unwrap() error { return os.ErrNotExist }

// Identification says whose state a file holds. It is written when the file is
// created and never changes.
type Identification struct {
	ClusterID string // 1 to 255 bytes
	Shard     int    // from 0 to Shards-1
	Shards    int    // 1 to 65,536; fixed when the cluster is created
}

// Position is that of an entry in the Raft log. The zero value is before the first.
type Position struct {
	Index uint64
	Term  uint64
}

// Clock is the shard's logical clock with what it is reckoned from.
type Clock struct {
	Term  uint64         // the term whose leader moves it
	Noted admission.Time // what it read when that term's leader started
	Now   admission.Time // what it reads
}

// CommitObserver is told of every commit of the state file; either may be nil. A
// commit that does not return is a disk that hangs.
type CommitObserver struct {
	Before func()
	After  func()
}

// Config says where the state is and how it is written. [Config.WithDefaults]
// fills in what is zero.
type Config struct {
	// Path of the state file. Temporary files lie beside it, with its name and a
	// suffix.
	Path string
	// Create makes a new file where there is none. A file that is there is never
	// replaced by a new one, whatever it looks like.
	Create bool
	Identification
	Logger *slog.Logger

	// FlushInterval is how long something applied may stay in memory only, give or
	// take the time of a commit: after a crash it is applied again from the log. What changes
	// twice meanwhile is written once. 1 ms to 10 s, 500 ms by default.
	FlushInterval time.Duration
	// FlushEntries is how many changed records start a flush at once. At least 1,
	// 8,192 by default.
	FlushEntries int
	// FlushBytes is how many gathered bytes start a flush at once. At least 1, 8 MiB
	// by default.
	FlushBytes int64
	// GatheredBytesMax blocks updates while more is gathered. At least FlushBytes,
	// 64 MiB by default.
	GatheredBytesMax int64

	// MapBytes is how much address space the file is mapped into, once and for all:
	// a second mapping would wait for every reader, and every reader for it. The
	// file cannot grow past it, less 1 MiB for every 64. At least 1 MiB, 64 GiB by
	// default; it is address space, not memory.
	MapBytes int64

	// Space is what copies of the state may take, and what the other stores of the node
	// share. Nil: as much as they need.
	Space *Space

	// Fatal is called once, from a goroutine of the store or of a caller, after the
	// store has failed. It must not call the store.
	Fatal func(error)
	// CommitObserver is told of every commit.
	CommitObserver CommitObserver
	// OpenFile opens the state file; nil is [os.OpenFile]. It is for tests that
	// break the file.
	OpenFile func(name string, flag int, mode os.FileMode) (*os.File, error)
}

// Defaults and limits of a [Config].
const (
	FlushIntervalDefault    = 500 * time.Millisecond
	FlushIntervalMin        = time.Millisecond
	FlushIntervalMax        = 10 * time.Second
	FlushEntriesDefault     = 8192
	FlushBytesDefault       = 8 << 20
	GatheredBytesMaxDefault = 64 << 20
	MapBytesDefault         = 64 << 30
	MapBytesMin             = 1 << 20
	ClusterIDBytesMax       = 255
	ShardsMax               = 1 << 16
)

// WithDefaults returns the configuration with its zero values filled in.
func (c Config) WithDefaults() Config {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.FlushInterval == 0 {
		c.FlushInterval = FlushIntervalDefault
	}
	if c.FlushEntries == 0 {
		c.FlushEntries = FlushEntriesDefault
	}
	if c.FlushBytes == 0 {
		c.FlushBytes = FlushBytesDefault
	}
	if c.GatheredBytesMax == 0 {
		c.GatheredBytesMax = GatheredBytesMaxDefault
	}
	if c.MapBytes == 0 {
		c.MapBytes = MapBytesDefault
	}
	if c.Space == nil {
		c.Space = boundless()
	}
	if c.OpenFile == nil {
		c.OpenFile = os.OpenFile
	}
	return c
}

// Validate returns what is out of range, in one line that names the field.
func (c Config) Validate() error {
	switch {
	case c.Path == "":
		return errors.New("store: Path is empty")
	case c.FlushInterval < FlushIntervalMin || c.FlushInterval > FlushIntervalMax:
		return fmt.Errorf("store: FlushInterval is %v, it must be from %v to %v", c.FlushInterval, FlushIntervalMin, FlushIntervalMax)
	case c.FlushEntries < 1:
		return fmt.Errorf("store: FlushEntries is %d, it must be at least 1", c.FlushEntries)
	case c.FlushBytes < 1:
		return fmt.Errorf("store: FlushBytes is %d, it must be at least 1", c.FlushBytes)
	case c.GatheredBytesMax < c.FlushBytes:
		return fmt.Errorf("store: GatheredBytesMax is %d, it must be at least FlushBytes, which is %d", c.GatheredBytesMax, c.FlushBytes)
	case c.MapBytes < MapBytesMin:
		return fmt.Errorf("store: MapBytes is %d, it must be at least %d", c.MapBytes, MapBytesMin)
	}
	return c.validate()
}

func (id Identification) validate() error {
	switch {
	case id.ClusterID == "" || len(id.ClusterID) > ClusterIDBytesMax:
		return fmt.Errorf("store: ClusterID is %d bytes long, it must be from 1 to %d", len(id.ClusterID), ClusterIDBytesMax)
	case id.Shards < 1 || id.Shards > ShardsMax:
		return fmt.Errorf("store: Shards is %d, it must be from 1 to %d", id.Shards, ShardsMax)
	case id.Shard < 0 || id.Shard >= id.Shards:
		return fmt.Errorf("store: Shard is %d, it must be from 0 to %d", id.Shard, id.Shards-1)
	}
	return nil
}

// Stats is what a store says of itself, all of it as of one moment.
type Stats struct {
	// Records by stored state. An overdue record counts as what is stored until its
	// alarm has come by; [admission.StateNone] counts the tombstones.
	Records       [admission.States]uint64
	Namespaces    int   // with at least one record
	FileBytes     int64 // of the state file, free pages included
	IndexBytes    int64 // of the index in memory, without the namespaces' names
	GatheredBytes int64 // applied and not yet durable
	Applied       Position
	Durable       Position
	Clock         Clock
	Counter       uint64 // the last fence or revision given out
}
