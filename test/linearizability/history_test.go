package linearizability

import (
	"time"

	"github.com/atmostonce/coordinator/test/history"
)

// what is written by hand here says when it was sent and answered in seconds.
type option func(*history.Event)

func event(kind history.Kind, attempt byte, sent, answered float64, options ...option) history.Event {
	e := history.Event{
		Kind: kind, Namespace: "default", Principal: "p", Operation: "op", Key: "k",
		Sent: seconds(sent), Answered: seconds(answered), LastSent: seconds(sent), Tries: 1,
	}
	if attempt != 0 {
		e.Attempt = history.Attempt{attempt}
	}
	for _, o := range options {
		o(&e)
	}
	return e
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// grant is granted for 100 s unless an option says otherwise.
func grant(attempt byte, sent, answered float64, fence uint64, number uint32, options ...option) history.Event {
	return event(history.Granted, attempt, sent, answered, append([]option{func(e *history.Event) {
		e.Fence, e.Number, e.TTL = fence, number, 100*time.Second
	}}, options...)...)
}

func waits(attempt byte, sent, answered float64, number uint32, options ...option) history.Event {
	return event(history.Pending, attempt, sent, answered, append([]option{num(number)}, options...)...)
}

func commits(attempt byte, sent, answered float64, response byte, options ...option) history.Event {
	return event(history.Committed, attempt, sent, answered, append([]option{body(response)}, options...)...)
}

func replays(attempt byte, sent, answered float64, response byte, options ...option) history.Event {
	return event(history.Replayed, attempt, sent, answered, append([]option{body(response)}, options...)...)
}

func refused(call history.Kind, attempt byte, sent, answered float64, reason string, options ...option) history.Event {
	return event(history.Refused, attempt, sent, answered, append([]option{func(e *history.Event) {
		e.Call, e.Reason = call, reason
	}}, options...)...)
}

func num(n uint32) option          { return func(e *history.Event) { e.Number = n } }
func body(b byte) option           { return func(e *history.Event) { e.Response = history.Digest{b} } }
func ttl(s float64) option         { return func(e *history.Event) { e.TTL = seconds(s) } }
func retention(s float64) option   { return func(e *history.Event) { e.Retention = seconds(s) } }
func until(s float64) option       { return func(e *history.Event) { e.Deadline = seconds(s) } }
func hold(e *history.Event)        { e.Hold = true }
func late(e *history.Event)        { e.Late = true }
func repeated(e *history.Event)    { e.Repeated = true }
func unknown(e *history.Event)     { e.Unknown = true }
func force(e *history.Event)       { e.Force = true }
func applied(e *history.Event)     { e.Applied = true }
func print(f string) option        { return func(e *history.Event) { e.Fingerprint = f } }
func note(n string) option         { return func(e *history.Event) { e.Note = n } }
func owner(o string) option        { return func(e *history.Event) { e.Owner = o } }
func holder(o string) option       { return func(e *history.Event) { e.Holder = o } }
func principal(p string) option    { return func(e *history.Event) { e.Principal = p } }
func named(f uint64) option        { return func(e *history.Event) { e.Fence = f } }
func revision(r uint64) option     { return func(e *history.Event) { e.Revision = r } }
func shows(s history.State) option { return func(e *history.Event) { e.State = s } }
func tries(n int) option           { return func(e *history.Event) { e.Tries = n } }
func firstSent(s float64) option   { return func(e *history.Event) { e.Sent = seconds(s) } }
func after(end history.End, fence uint64) option {
	return func(e *history.Event) { e.Previous, e.PreviousFence = end, fence }
}
