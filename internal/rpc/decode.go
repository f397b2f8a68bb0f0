package rpc

import (
	"crypto/rand"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Details of a violation name the limit and the size of what was given, and never
// what was given: it may be a secret, and need not be text.

func invalid(field, format string, arguments ...any) error {
	return reason.Violation(reason.InvalidArgument, field, fmt.Sprintf(format, arguments...))
}

// refused turns a violation of the rules' own bounds into a status.
func refused(v *admission.Violation) error {
	if v == nil {
		return nil
	}
	return reason.Violation(reason.Reason(v.Reason), v.Field, v.Detail)
}

func decodeIdentity(id *coordinatorv1.Identity) (admission.Identity, error) {
	if id == nil {
		return admission.Identity{}, invalid("identity", "is required")
	}
	decoded := admission.Identity{
		Namespace: id.GetNamespace(),
		Principal: id.GetPrincipal(),
		Operation: id.GetOperation(),
		Key:       id.GetKey(),
	}
	if decoded.Namespace == "" {
		decoded.Namespace = admission.DefaultNamespace
	}
	return decoded, refused(decoded.Validate())
}

// decodeWindow returns the duration, or the default where it is absent. Zero is a
// duration like any other here: whether it is allowed is a matter of least.
func decodeWindow(field string, d *durationpb.Duration, absent, least, most time.Duration) (time.Duration, error) {
	if d == nil {
		return absent, nil
	}
	seconds, nanos := d.GetSeconds(), int64(d.GetNanos())
	if nanos <= -1e9 || nanos >= 1e9 || (seconds > 0 && nanos < 0) || (seconds < 0 && nanos > 0) {
		return 0, invalid(field, "is not a duration: %d seconds and %d nanoseconds", seconds, nanos)
	}
	const secondsMax = math.MaxInt64/int64(time.Second) - 1
	if seconds < -secondsMax || seconds > secondsMax {
		return 0, invalid(field, "is %d seconds, it must be from %v to %v", seconds, least, most)
	}
	window := time.Duration(seconds*1e9 + nanos)
	return window, refused(admission.CheckWindow(field, window, least, most))
}

// decodeAttempt returns the attempt id, which is drawn here if the caller gave none.
func decodeAttempt(given []byte) (id admission.AttemptID, err error) {
	switch len(given) {
	case 0:
		// This cannot fail: a system without randomness ends the program.
		_, _ = rand.Read(id[:])
		return id, nil
	case len(id):
		copy(id[:], given)
		return id, nil
	}
	return id, invalid("attempt_id", "is %d bytes long, it must be %d", len(given), len(id))
}

func decodeOnLapse(given coordinatorv1.OnLapse) (admission.OnLapse, error) {
	switch given {
	case coordinatorv1.OnLapse_ON_LAPSE_UNSPECIFIED, coordinatorv1.OnLapse_ON_LAPSE_REOPEN:
		return admission.Reopen, nil
	case coordinatorv1.OnLapse_ON_LAPSE_HOLD:
		return admission.Hold, nil
	}
	return 0, invalid("on_lapse", "is %d, which has no meaning", int32(given))
}

func decodeToken(given string) (admission.Token, error) {
	token, v := admission.ParseToken("token", given)
	return token, refused(v)
}

// checkText is the rules' check of a text, for what the rules do not see.
func checkText(field, text string, least, most int) error {
	switch {
	case len(text) < least:
		return invalid(field, "must not be empty")
	case len(text) > most:
		return invalid(field, "is %d bytes long, the limit is %d", len(text), most)
	case !utf8.ValidString(text):
		return invalid(field, "is not valid UTF-8")
	}
	return nil
}

// checkResponse checks what is to be stored. Beyond that it is text, nothing is asked
// of a header: what is replayed is what was given, and whether it suits HTTP is for
// whoever replays it.
func (s *server) checkResponse(field string, r *coordinatorv1.Response) error {
	if code := r.GetCode(); code > admission.ResponseCodeMax {
		return invalid(field+".code", "is %d, the limit is %d", code, admission.ResponseCodeMax)
	}
	if lines := len(r.GetHeaders()); lines > admission.HeadersMax {
		return invalid(field+".headers", "has %d lines, the limit is %d", lines, admission.HeadersMax)
	}
	if size := responseBytes(r); size > s.settings.ResponseBytesMax {
		return reason.Violation(reason.ResponseTooLarge, field, fmt.Sprintf(
			"is %d bytes of headers and body, the limit is %d", size, s.settings.ResponseBytesMax))
	}
	for i, header := range r.GetHeaders() {
		if err := checkText(fmt.Sprintf("%s.headers[%d].name", field, i), header.GetName(), 1, math.MaxInt); err != nil {
			return err
		}
		if err := checkText(fmt.Sprintf("%s.headers[%d].value", field, i), header.GetValue(), 0, math.MaxInt); err != nil {
			return err
		}
	}
	return checkText(field+".content_type", r.GetContentType(), 0, math.MaxInt)
}

// decodeState turns a filter into a state; [admission.StateNone] is every state.
func decodeState(given coordinatorv1.State) (admission.State, error) {
	switch given {
	case coordinatorv1.State_STATE_UNSPECIFIED:
		return admission.StateNone, nil
	case coordinatorv1.State_STATE_PENDING:
		return admission.StatePending, nil
	case coordinatorv1.State_STATE_LAPSED:
		return admission.StateLapsed, nil
	case coordinatorv1.State_STATE_IN_DOUBT:
		return admission.StateInDoubt, nil
	case coordinatorv1.State_STATE_COMMITTED:
		return admission.StateCommitted, nil
	case coordinatorv1.State_STATE_RELEASED:
		return admission.StateReleased, nil
	}
	return 0, invalid("state", "is %d, which has no meaning", int32(given))
}
