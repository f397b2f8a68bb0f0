package scenario

import (
	"fmt"
	"reflect"
	"time"
)

// compare returns how the result differs from what was expected, or nil.
func (p *play) compare(want *Expect, got Result) error {
	if got.Reason != want.Reason {
		return fmt.Errorf("want %s, got %s", worded(want.Reason), worded(got.Reason))
	}
	if want.Outcome != got.Outcome {
		return different("outcome", want.Outcome, got.Outcome)
	}
	if want.State != got.State {
		return different("state", want.State, got.State)
	}
	if want.Attempt != nil && *want.Attempt != got.Attempt {
		return different("attempt", *want.Attempt, got.Attempt)
	}
	if want.Previous != "" && want.Previous != got.Previous {
		return different("previous", want.Previous, got.Previous)
	}
	if want.PreviousReason != nil && *want.PreviousReason != got.PreviousReason {
		return different("previous_reason", *want.PreviousReason, got.PreviousReason)
	}
	if want.Repeated != nil && *want.Repeated != got.Repeated {
		return different("repeated", *want.Repeated, got.Repeated)
	}
	if want.Late != nil && *want.Late != got.Late {
		return different("late", *want.Late, got.Late)
	}
	if want.Response != nil && !sameResponse(want.Response, got.Response) {
		return different("response", want.Response, got.Response)
	}
	if want.Remaining != nil {
		remaining := time.Duration(*want.Remaining)
		if got.Remaining > remaining || got.Remaining < remaining-p.Tolerance {
			return different("remaining", remaining, got.Remaining)
		}
	}
	return p.compareGrants(want, got)
}

func (p *play) compareGrants(want *Expect, got Result) error {
	if want.SameGrant != "" {
		first, known := p.grants[want.SameGrant]
		if !known {
			return fmt.Errorf("nothing was granted as %q", want.SameGrant)
		}
		if got.Fence != first.fence || got.Token != first.token {
			return different("same_grant "+want.SameGrant, first.fence, got.Fence)
		}
	}
	if want.FenceAbove != "" {
		lower, known := p.grants[want.FenceAbove]
		if !known {
			return fmt.Errorf("nothing was granted as %q", want.FenceAbove)
		}
		if got.Fence <= lower.fence {
			return fmt.Errorf("fence %d is not above %d", got.Fence, lower.fence)
		}
	}
	return nil
}

func sameResponse(want, got *Response) bool {
	if got == nil {
		return false
	}
	same := *want
	other := *got
	if len(same.Headers) == 0 && len(other.Headers) == 0 {
		same.Headers, other.Headers = nil, nil
	}
	return reflect.DeepEqual(same, other)
}

func different(field string, want, got any) error {
	return fmt.Errorf("%s: want %+v, got %+v", field, shown(want), shown(got))
}

func shown(value any) any {
	if response, ok := value.(*Response); ok && response != nil {
		return *response
	}
	return value
}

func worded(reason string) string {
	if reason == "" {
		return "no refusal"
	}
	return reason
}
