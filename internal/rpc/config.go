package rpc

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// MessageBytesMax is how large a message to the server may be, in bytes. A response
// of [Settings].ResponseBytesMax fits with all its framing.
const MessageBytesMax = 2 << 20

// receivedBytesMax is how large a message may be to be refused by name. gRPC refuses
// larger ones by itself. It holds what it has received of a message, so this is what a
// stream may take, too.
const receivedBytesMax = 2 * MessageBytesMax

// responseFieldMax is more than any response takes in a message that can be stored.
const responseFieldMax = admission.ResponseBytesMax + 64*(admission.HeadersMax+1)

// sessionBytesLeast is the least that sessions may be given: a quarter holds two of the largest
// messages.
const sessionBytesLeast = 8 * MessageBytesMax

// Config is what the services need.
type Config struct {
	Shards  Shards
	Cluster Cluster
	// Membership may be nil: members cannot be replaced.
	Membership Membership
	Settings   Settings
	// StorageFull reports whether this node is short of disk space, so that it
	// takes no new keys on the shards that it leads. Nil: never.
	StorageFull func() bool
	// Space says how much disk space is free and how much must be, for people; "" where
	// that is not known. Nil: never known.
	Space func() string
	// Stopping is closed when the node begins to stop: sessions end then. Nil: never.
	Stopping <-chan struct{}
	// Closing is closed when the node begins to close its shards, which hear of no leader from
	// then on: calls that wait for one end then. Nil: never.
	Closing <-chan struct{}
	// Calls are what the servers count their calls in, one for each, in the order in which
	// Register is given them; further ones count for nobody.
	Calls []*Calls
	// Logger may be nil: nothing is logged.
	Logger *slog.Logger

	unsent *unsent // nil: Register makes one
}

// Settings are the defaults and limits that a node decides. Where a call is carried
// out, the settings of the shard's leader hold.
type Settings struct {
	// PendingTTLDefault is the pending window of a Reserve that names none, 100 ms
	// to 24 h.
	PendingTTLDefault time.Duration
	// RetentionDefault is the retention of a Reserve that names none, 1 s to 30 days.
	RetentionDefault time.Duration
	// ExtendSpan is how long after its grant an attempt's deadline may be moved to,
	// from PendingTTLDefault to 365 days.
	ExtendSpan time.Duration
	// ResponseBytesMax bounds headers, content type and body of a response together, 1
	// byte to 1 MiB.
	ResponseBytesMax int
	// CompressFrom is the size from which a response is compressed, in bytes, if it
	// becomes smaller by an eighth. More than ResponseBytesMax: never.
	CompressFrom int
	// NamespaceRecordsMax bounds the records of one namespace; 0 is no limit. It is
	// split over the shards, rounded up: each counts its own.
	NamespaceRecordsMax uint64
	// CallsMax bounds the calls that are under way at a time on each port, 1 or more. A session is
	// one, whatever it carries.
	CallsMax int
	// UnsentBytesMax bounds the answers of more than 4 KiB that clients have yet to take,
	// in bytes and over all connections; 1 MiB or more. One connection may have a half.
	UnsentBytesMax int64
	// SessionBytesMax bounds what all sessions take, in bytes; 16 MiB or more. A quarter is for
	// those that are open, 416 KiB each; a quarter for their messages, while calls of them wait;
	// a half for calls that are under way, 26 KiB each beside twice their bytes. See [sessionRoom].
	SessionBytesMax int64
	// WantedForDefault is how long a call without a deadline is worked on, beyond the
	// time that it asks to wait; 100 ms to 10 min.
	WantedForDefault time.Duration
	// LeaderWait is how long a call waits for its shard to have a leader before it is
	// answered NO_LEADER, 0 to 1 min, and never past its own deadline.
	LeaderWait time.Duration
	// StatusWait is how long ListShards waits for other nodes before it shows what this
	// one knows, 1 ms to 1 min, and never past its own deadline.
	StatusWait time.Duration
}

// Default returns the settings of a node that sets none.
func Default() Settings {
	return Settings{
		PendingTTLDefault: admission.PendingTTLDefault,
		RetentionDefault:  admission.RetentionDefault,
		ExtendSpan:        admission.ExtendSpanDefault,
		ResponseBytesMax:  admission.ResponseBytesMax,
		CompressFrom:      512,
		CallsMax:          16384,
		UnsentBytesMax:    64 << 20,
		SessionBytesMax:   256 << 20,
		WantedForDefault:  time.Minute,
		LeaderWait:        2 * time.Second,
		StatusWait:        2 * time.Second,
	}
}

// Validate returns the first setting that is out of bounds.
func (s Settings) Validate() error {
	for _, window := range []struct {
		name        string
		value       time.Duration
		least, most time.Duration
	}{
		{"pending TTL default", s.PendingTTLDefault, admission.PendingTTLMin, admission.PendingTTLMax},
		{"retention default", s.RetentionDefault, admission.RetentionMin, admission.RetentionMax},
		{"extend span", s.ExtendSpan, s.PendingTTLDefault, 365 * 24 * time.Hour},
		{"wanted-for default", s.WantedForDefault, 100 * time.Millisecond, 10 * time.Minute},
		{"leader wait", s.LeaderWait, 0, time.Minute},
		{"status wait", s.StatusWait, time.Millisecond, time.Minute},
	} {
		if window.value < window.least || window.value > window.most {
			return fmt.Errorf("the %s is %v, it must be from %v to %v", window.name, window.value, window.least, window.most)
		}
	}
	if s.ResponseBytesMax < 1 || s.ResponseBytesMax > admission.ResponseBytesMax {
		return fmt.Errorf("the response limit is %d bytes, it must be from 1 to %d", s.ResponseBytesMax, admission.ResponseBytesMax)
	}
	if s.CompressFrom < 0 {
		return fmt.Errorf("the size from which responses are compressed is %d, it must not be negative", s.CompressFrom)
	}
	if s.CallsMax < 1 {
		return fmt.Errorf("the bound on calls is %d, it must be at least 1", s.CallsMax)
	}
	if s.UnsentBytesMax < 1<<20 {
		return fmt.Errorf("the bound on unsent answers is %d bytes, it must be at least %d", s.UnsentBytesMax, 1<<20)
	}
	if s.SessionBytesMax < sessionBytesLeast {
		return fmt.Errorf("the bound on sessions is %d bytes, it must be at least %d", s.SessionBytesMax, sessionBytesLeast)
	}
	return nil
}

func (c Config) validate() error {
	if c.Shards == nil || c.Cluster == nil {
		return errors.New("rpc: a server needs shards and a cluster")
	}
	return c.Settings.Validate()
}
