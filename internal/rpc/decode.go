package rpc

import (
	"crypto/rand"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"
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
		// Callers that forgot to draw would all be one attempt, and all be admitted.
		if copy(id[:], given); id == (admission.AttemptID{}) {
			return id, invalid("attempt_id", "is %d zero bytes, it must be drawn at random", len(id))
		}
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

// trailerPrefix begins the name of a header that is to be replayed behind the body, as in
// net/http.
const trailerPrefix = "Trailer:"

// checkResponse checks what is to be stored. What is replayed is what was given, and
// whoever replays it may write it out as it is: so a header that could end its own line, or
// the whole head, is not taken in.
func (s *server) checkResponse(field string, r *coordinatorv1.Response) error {
	if code := r.GetCode(); code > admission.ResponseCodeMax {
		return invalid(field+".code", "is %d, the limit is %d", code, admission.ResponseCodeMax)
	}
	if lines := len(r.GetHeaders()); lines > admission.HeadersMax {
		return tooManyHeaders(field, lines)
	}
	if size := responseBytes(r); size > s.settings.ResponseBytesMax {
		return reason.Violation(reason.ResponseTooLarge, field, fmt.Sprintf(
			"is %d bytes of headers and body, the limit is %d", size, s.settings.ResponseBytesMax))
	}
	for i, header := range r.GetHeaders() {
		if err := checkHeaderName(fmt.Sprintf("%s.headers[%d].name", field, i), header.GetName()); err != nil {
			return err
		}
		if err := checkHeaderValue(fmt.Sprintf("%s.headers[%d].value", field, i), header.GetValue()); err != nil {
			return err
		}
	}
	return checkHeaderValue(field+".content_type", r.GetContentType())
}

func tooManyHeaders(response string, lines int) error {
	return invalid(response+".headers", "has %d lines, the limit is %d", lines, admission.HeadersMax)
}

// checkHeaderName asks for a token (RFC 9110, section 5.6.2), with trailerPrefix before it
// or not.
func checkHeaderName(field, given string) error {
	if err := checkText(field, given, 1, math.MaxInt); err != nil {
		return err
	}
	name := strings.TrimPrefix(given, trailerPrefix)
	switch {
	case name == "":
		return invalid(field, "must not be empty behind %s", trailerPrefix)
	case httpguts.ValidHeaderFieldName(name):
		return nil
	}
	return invalid(field, "has at byte %d of %d what the name of a header cannot have: it may have letters, digits and !#$%%&'*+-.^_`|~",
		len(given)-len(name)+firstInvalid(name, httpguts.ValidHeaderFieldName), len(given))
}

// checkHeaderValue asks for what a header can have for a value (RFC 9110, section 5.5).
func checkHeaderValue(field, given string) error {
	if err := checkText(field, given, 0, math.MaxInt); err != nil || httpguts.ValidHeaderFieldValue(given) {
		return err
	}
	return invalid(field, "has at byte %d of %d what the value of a header cannot have: CR, LF, NUL or another control character but the tab",
		firstInvalid(given, httpguts.ValidHeaderFieldValue), len(given))
}

// firstInvalid returns where the first byte is that is not valid, counted from 0, of a text that
// has one.
func firstInvalid(text string, valid func(string) bool) int {
	for i := range len(text) {
		if !valid(text[i : i+1]) {
			return i
		}
	}
	return len(text)
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
