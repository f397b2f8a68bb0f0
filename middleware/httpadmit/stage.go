package httpadmit

import "fmt"

// stage is how far a guarded response has come, which is all that decides what becomes of a byte:
//
//	waiting ──begins──▶ keeping ──flows───▶ streaming
//	                       └──────spills──▶ dropping
//
// and, when the handler returns, from keeping to kept, from streaming to streamed, and from
// dropping to dropped. That the caller has got another answer meanwhile (abandoned) is not a
// stage: a response that has gone out in part has its caller, and another one goes on as before,
// and never out.
type stage uint8

const (
	waiting   stage = iota // there is no final status yet
	keeping                // the body is kept back, all of it
	streaming              // it is over the limit and goes out, but for its last byte
	dropping               // it is over the limit and may not go out: what is beyond is gone
	kept
	streamed
	dropped
)

// event is what moves a response on.
type event uint8

const (
	begins  event = iota // there is a final status
	flows                // it is over the limit, and may go out
	spills               // it is over the limit, and may not
	returns              // the handler has returned
)

// next is the stage after an event. There is no other way from one to another.
func (s stage) next(e event) stage {
	switch {
	case s == waiting && e == begins:
		return keeping
	case s == keeping && e == flows:
		return streaming
	case s == keeping && e == spills:
		return dropping
	case s == keeping && e == returns:
		return kept
	case s == streaming && e == returns:
		return streamed
	case s == dropping && e == returns:
		return dropped
	}
	panic(fmt.Sprintf("httpadmit: a response in stage %d cannot take event %d", s, e))
}

// ended reports whether the handler has returned.
func (s stage) ended() bool { return s >= kept }

// out reports whether a part of the response has gone out.
func (s stage) out() bool { return s == streaming || s == streamed }
