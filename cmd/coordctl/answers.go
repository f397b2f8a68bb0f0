package main

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/atmostonce/coordinator/internal/reason"
)

// answers keeps in mind what the tries of a client come to, one by one. The client tells of all
// tries of a call together, of one that was cut off nothing, and of renewals nobody hears.
type answers struct {
	mu    sync.Mutex
	asked string // the node that was asked last and has not answered; "": it has
	at    string // the node at which the last try failed that has come to an end
	why   error  // how; nil: it was answered
	said  bool   // that is the answer of who is there
	sent  bool   // it may have been asked: it was connected to
}

// passthrough is how a client with a dialer of its own names a node to gRPC.
const passthrough = "passthrough:///"

// note is an interceptor.
func (a *answers) note(
	ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption,
) error {
	address := strings.TrimPrefix(conn.Target(), passthrough)
	a.mu.Lock()
	a.asked = address
	a.mu.Unlock()
	began := time.Now()
	var (
		to              peer.Peer // nobody, unless the call was given a connection
		header, trailer metadata.MD
	)
	err := invoke(ctx, method, request, reply, conn, append(options[:len(options):len(options)], grpc.Peer(&to), grpc.Header(&header), grpc.Trailer(&trailer))...)
	a.mu.Lock()
	defer a.mu.Unlock()
	switch code := status.Code(err); {
	case err == nil:
		a.asked, a.at, a.why = "", "", nil
	case code == codes.Canceled: // it was cut off here: nothing new is known
	case code == codes.DeadlineExceeded && a.why != nil && time.Since(began) < connectTimeout:
		// The call's time was over before the node had its own: what was before tells more.
	default:
		a.at, a.why, a.said, a.sent = address, err, answered(ctx, reason.Of(err), header, trailer), to.Addr != nil
	}
	return err
}

// silent returns the node that gave no answer; "" where none is known.
func (a *answers) silent() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at != "" {
		return a.at
	}
	return a.asked
}

// answer is the answer of the node at which the last try failed; "": it gave none, or one with a reason.
func (a *answers) answer() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if failure := reason.Of(a.why); a.why != nil && a.said && !failure.Info {
		return answerInWords(a.at, failure)
	}
	return ""
}

// inWords says why there has been no good answer lately; "": there has been one. c knows what
// has come of connecting to who was not asked.
func (a *answers) inWords(c *control) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch failure := reason.Of(a.why); {
	case a.why == nil && a.asked == "":
		return ""
	case a.why == nil:
		return "no answer from " + a.asked
	case failure.Info:
		return string(failure.Reason) + " at " + a.at + ": " + failure.Message
	case a.said:
		return answerInWords(a.at, failure)
	case failure.Code == codes.DeadlineExceeded:
		return "no answer from " + a.at
	case failure.Code == codes.Unavailable && a.sent:
		return brokeInWords(a.at)
	case failure.Code == codes.Unavailable:
		return c.unconnected(a.at)
	default:
		return a.at + ": " + failure.Message
	}
}
