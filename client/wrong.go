package client

import (
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/internal/lease"
)

// given panics where one of the options of a call is nil: what it was to say is lost, and the call
// without it may admit where the caller has chosen [Hold]. The program that makes one is wrong.
func given[O any](call string, options []O) []O {
	for i, option := range options {
		if any(option) == nil {
			panic(fmt.Sprintf("client: option %d of %s is nil", i+1, call))
		}
	}
	return options
}

// invalid is the refusal of an argument that is not sent, in the words of those that are.
func invalid(call, field, detail string) error {
	return &Error{
		Call: call, Reason: reasonInvalidArgument, Code: codes.InvalidArgument, Message: field + " " + detail,
		Violations: []Violation{{Field: field, Detail: detail}},
	}
}

// check returns what no Reserve could have, so that none which is made later fails by it.
func (c *reserveConfig) check() error {
	var wrong error
	refuse := func(option string, err error) {
		if err != nil && wrong == nil {
			wrong = fmt.Errorf("%s %w", option, err)
		}
	}
	if c.pendingTTL != nil {
		refuse("WithPendingTTL", lease.CheckPendingTTL(*c.pendingTTL))
	}
	if c.retention != nil {
		refuse("WithRetention", lease.CheckRetention(*c.retention))
	}
	if c.timeout != nil {
		refuse("WithReserveTimeout", checkTimeout(*c.timeout))
	}
	refuse("WithOwner", lease.CheckOwner(c.owner))
	refuse("WithFingerprint", lease.CheckFingerprint(c.fingerprint))
	refuse("WithOnLapse", c.onLapse.check())
	return wrong
}

func checkTimeout(d time.Duration) error {
	if d <= 0 {
		return fmt.Errorf("is %v, it must be more than 0", d)
	}
	return nil
}

// check reports a value that is none. The wire has other numbers, so it cannot be sent as it is.
func (o OnLapse) check() error {
	if o != Reopen && o != Hold {
		return fmt.Errorf("is %d, which has no meaning", int(o))
	}
	return nil
}

// codeMost is the largest code of a response.
const codeMost = 999

// check refuses a code that cannot be sent as it is; of the rest the coordinator says what is wrong.
func (r Response) check(call string) error {
	if r.Code < 0 || r.Code > codeMost {
		return invalid(call, "response.code", fmt.Sprintf("is %d, the limit is %d", r.Code, codeMost))
	}
	return nil
}
