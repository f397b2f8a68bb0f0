package admit

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/lease"
)

// Settings are what a middleware of any protocol is told. They do not change once they are
// checked.
type Settings struct {
	Client *client.Client
	Logger *slog.Logger

	Anonymous bool   // nobody need be known
	Required  bool   // a request without a key is refused
	Namespace string // "": the coordinator's default

	OnLapse        client.OnLapse
	PendingTTL     *time.Duration // nil: the client's, else the coordinator's
	Retention      *time.Duration // as above
	Owner          string         // "": the client's
	Wait           *time.Duration // nil: the client's
	ReserveTimeout time.Duration  // without an answer of the coordinator; more than 0
	KeepAlive      bool
	CallerCancels  bool
	HandlerTimeout time.Duration // 0: none
	SettleWait     time.Duration // more than 0
	RetryAfter     time.Duration // more than 0
	ResponseLimit  int           // bytes; 0 or more
	Docs           string
	Kind           string // what the protocol calls that which is guarded: "request"

	// Abort is what a handler panics with to end its answer without being at fault, where the
	// protocol has such a value. It is not logged, and stands for a handler that ended its
	// goroutine.
	Abort any
}

// Defaults of the settings.
const (
	reserveTimeoutDefault = 3 * time.Second
	settleWaitDefault     = 15 * time.Second
	retryAfterDefault     = time.Second
	responseBytesDefault  = 1 << 20
)

// Defaults returns the settings of a middleware that was told nothing.
func Defaults(c *client.Client, docs string) Settings {
	return Settings{
		Client: c, Logger: slog.Default(), ReserveTimeout: reserveTimeoutDefault, SettleWait: settleWaitDefault,
		RetryAfter: retryAfterDefault, ResponseLimit: responseBytesDefault, Docs: docs, Kind: "request",
	}
}

// Check returns what is wrong with the settings. principal says that there is a function for
// it.
func (s *Settings) Check(principal bool) []error {
	var wrong []error
	if err := checkPart("namespace", s.Namespace, namespaceBytesMost); err != nil {
		wrong = append(wrong, err)
	}
	refuse := func(option string, err error) {
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s %w", option, err))
		}
	}
	if s.PendingTTL != nil {
		refuse("WithPendingTTL", lease.CheckPendingTTL(*s.PendingTTL))
	}
	if s.Retention != nil {
		refuse("WithRetention", lease.CheckRetention(*s.Retention))
	}
	refuse("WithOwner", lease.CheckOwner(s.Owner))
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{s.Client == nil, "there is no client"},
		{s.Logger == nil, "there is no logger"},
		{s.OnLapse != client.Reopen && s.OnLapse != client.Hold, fmt.Sprintf("WithOnLapse is %d, it must be client.Reopen or client.Hold", int(s.OnLapse))},
		{!principal && !s.Anonymous, "there is no principal: use WithPrincipal, or WithAnonymous to share all keys"},
		{s.ResponseLimit < 0, fmt.Sprintf("the limit of responses is %d, it must be 0 or more", s.ResponseLimit)},
		{s.ReserveTimeout <= 0, fmt.Sprintf("the timeout of reserving is %v, it must be more than 0", s.ReserveTimeout)},
		{s.HandlerTimeout < 0, fmt.Sprintf("the timeout of handlers is %v, it must be 0 or more", s.HandlerTimeout)},
		{s.SettleWait <= 0, fmt.Sprintf("the wait for settling is %v, it must be more than 0", s.SettleWait)},
		{s.RetryAfter <= 0, fmt.Sprintf("the delay of retries is %v, it must be more than 0", s.RetryAfter)},
	} {
		if rule.broken {
			wrong = append(wrong, fmt.Errorf("%s", rule.text))
		}
	}
	return wrong
}

// options are those of each Reserve. What was not set is the client's own (client.WithReserveDefaults).
func (s *Settings) options() []client.ReserveOption {
	options := []client.ReserveOption{client.WithOnLapse(s.OnLapse), client.WithReserveTimeout(s.ReserveTimeout)}
	if s.PendingTTL != nil {
		options = append(options, client.WithPendingTTL(*s.PendingTTL))
	}
	if s.Retention != nil {
		options = append(options, client.WithRetention(*s.Retention))
	}
	if s.Owner != "" {
		options = append(options, client.WithOwner(s.Owner))
	}
	if s.Wait != nil {
		options = append(options, client.WithWait(*s.Wait))
	}
	return options
}
