package admit

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/atmostonce/coordinator/client"
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
	Reserve        []client.ReserveOption
	ReserveTimeout time.Duration // without an answer of the coordinator; more than 0
	KeepAlive      bool
	CallerCancels  bool
	HandlerTimeout time.Duration // 0: none
	SettleWait     time.Duration // more than 0
	RetryAfter     time.Duration // more than 0
	ResponseLimit  int           // bytes; 0 or more
	Docs           string

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
		RetryAfter: retryAfterDefault, ResponseLimit: responseBytesDefault, Docs: docs,
	}
}

// Check returns what is wrong with the settings. principal says that there is a function for
// it.
func (s *Settings) Check(principal bool) []error {
	var wrong []error
	if err := checkPart("namespace", s.Namespace, namespaceBytesMost); err != nil {
		wrong = append(wrong, err)
	}
	for _, rule := range []struct {
		broken bool
		text   string
	}{
		{s.Client == nil, "there is no client"},
		{s.Logger == nil, "there is no logger"},
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
