package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	reflectionv1alpha "google.golang.org/grpc/reflection/grpc_reflection_v1alpha"
	"google.golang.org/grpc/tap"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// gRPC starts a goroutine for a call when its headers are there: before its message is, and
// before anybody can say that there are enough. A client may begin thousands on each of its
// connections and send nothing more. So calls are counted from then on, whichever service they
// are of, and one beyond what may be under way at a time is refused before its message is
// waited for. It has changed nothing.

// within gives a call that is no stream, of whichever service, the time that it has, also for its message to be there:
// its own, but no more than the longest wait and what a call without a deadline is worked on.
// What has not begun to be carried out by then is not.
func (s Settings) within(ctx context.Context, call *tap.Info) (context.Context, error) {
	most := s.WantedForDefault + admission.WaitMax
	deadline, its := ctx.Deadline()
	if its && time.Until(deadline) <= most || streams[call.FullMethodName] {
		return ctx, nil
	}
	within, end := context.WithTimeout(ctx, most)
	context.AfterFunc(ctx, end)
	if !its {
		within = context.WithValue(within, lentKey{}, true)
	}
	return within, nil
}

// lentKey marks the context of a call whose deadline is not its own.
type lentKey struct{}

// bound gives a call without a deadline of its own one, so that it ends.
func (s *server) bound(ctx context.Context, wait time.Duration) (context.Context, context.CancelFunc) {
	most := s.settings.WantedForDefault + wait
	if deadline, ok := ctx.Deadline(); ok && (time.Until(deadline) <= most || ctx.Value(lentKey{}) == nil) {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, most)
}

// streams are the full names of the methods that are streams, of all the services that a port may
// have: they last as long as their clients want.
var streams = func() map[string]bool {
	names := make(map[string]bool)
	for _, service := range append(slices.Clone(services), healthv1.Health_ServiceDesc, reflectionv1.ServerReflection_ServiceDesc, reflectionv1alpha.ServerReflection_ServiceDesc) {
		for _, stream := range service.Streams {
			names["/"+service.ServiceName+"/"+stream.StreamName] = true
		}
	}
	return names
}()

// Server is what services are registered with.
type Server interface {
	grpc.ServiceRegistrar
	GetServiceInfo() map[string]grpc.ServiceInfo
}

// Bounded is a server of which no more calls are under way at a time than may be, those of all
// the services together that are registered through one with the same Calls. What is refused is
// counted there, and which connections were ended for it is logged.
func Bounded(server Server, calls *Calls, most int, logger *slog.Logger) Server {
	return bounded{Server: server, calls: calls, most: int64(most), logger: logger}
}

// Looks is a server for services that only show how a node is and what it offers, to whoever may
// connect. No more of their calls are under way at a time than may be, and beside these as many
// streams, which last as long as their clients want: so they keep nobody from what is no stream.
// A connection has no more of them than a part, so that it takes many connections to keep others
// from theirs.
func Looks(server Server, most, ofConnection int, logger *slog.Logger) Server {
	return bounded{Server: server, calls: NewCalls(), most: int64(most), logger: logger,
		streams: new(atomic.Int64), ofConnection: int64(ofConnection)}
}

type bounded struct {
	Server
	calls  *Calls
	most   int64
	logger *slog.Logger

	streams      *atomic.Int64 // under way; nil: they are calls, whose service bounds those of a connection
	ofConnection int64         // streams of one connection
}

// RegisterService implements [grpc.ServiceRegistrar].
func (b bounded) RegisterService(description *grpc.ServiceDesc, implementation any) {
	within := *description
	within.Methods = make([]grpc.MethodDesc, len(description.Methods))
	for i, method := range description.Methods {
		handle, counted := method.Handler, b.calls.methods[method.MethodName]
		method.Handler = func(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			if err := b.enter(counted); err != nil {
				return nil, err
			}
			defer b.calls.underWay.Add(-1)
			return handle(service, ctx, b.calls.crowd.await(linkOf(ctx), decode), interceptor)
		}
		within.Methods[i] = method
	}
	within.Streams = make([]grpc.StreamDesc, len(description.Streams))
	for i, stream := range description.Streams {
		handle, counted := stream.Handler, b.calls.methods[stream.StreamName]
		stream.Handler = func(service any, over grpc.ServerStream) error {
			leave, err := b.open(linkOf(over.Context()), counted)
			if err != nil {
				return err
			}
			defer leave()
			return handle(service, over)
		}
		within.Streams[i] = stream
	}
	b.Server.RegisterService(&within, implementation)
}

// enter counts a call as under way, unless as many are as may be. Methods of other services than
// ours have no counts.
func (b bounded) enter(counted *method) error {
	if b.calls.underWay.Add(1) <= b.most {
		return nil
	}
	b.calls.underWay.Add(-1)
	b.full()
	b.thin()
	err := reason.Error(reason.Overloaded, fmt.Sprintf("as many calls are under way at this node as may be: %d", b.most))
	if counted != nil {
		counted.ended(time.Now(), nil, nil, err)
	}
	return err
}

// fullEvery is the time from one line of the log that says that calls are refused to the next.
const fullEvery = time.Minute

// full says that calls are refused.
func (b bounded) full() {
	said, now := b.calls.fullSaid.Load(), time.Now()
	if (said == nil || now.Sub(*said) >= fullEvery) && b.calls.fullSaid.CompareAndSwap(said, &now) {
		b.logger.Warn("calls are refused: as many are under way as may be", "calls_max", b.most)
	}
}

// thin ends connections that take places for nothing, at once or after some looks, one a second for as
// long as all places are taken: the next call that is refused may be long in coming.
func (b bounded) thin() {
	if ended := b.calls.crowd.thin(b.most); ended > 0 {
		b.logger.Warn("ended connections over which calls were begun and not sent: no more may be under way", "connections", ended, "calls_max", b.most)
	}
	if b.calls.looking.CompareAndSwap(false, true) {
		time.AfterFunc(awaitedEvery, func() {
			b.calls.looking.Store(false)
			if b.calls.underWay.Load() >= b.most {
				b.thin()
			}
		})
	}
}

// open counts a stream as under way until it leaves, unless as many are as may be.
func (b bounded) open(link *link, counted *method) (leave func(), err error) {
	if b.streams == nil {
		return func() { b.calls.underWay.Add(-1) }, b.enter(counted)
	}
	if its := link.looks.Add(1); its > b.ofConnection {
		link.looks.Add(-1)
		return nil, tooManyStreams("over this connection", b.ofConnection)
	}
	if all := b.streams.Add(1); all > b.most {
		b.streams.Add(-1)
		link.looks.Add(-1)
		return nil, tooManyStreams("at this node", b.most)
	}
	return func() {
		b.streams.Add(-1)
		link.looks.Add(-1)
	}, nil
}

// tooManyStreams is the error of a stream that would be one too many.
func tooManyStreams(where string, most int64) error {
	return reason.Error(reason.Overloaded, fmt.Sprintf("as many streams that show how this node is are open %s as may be: %d", where, most))
}
