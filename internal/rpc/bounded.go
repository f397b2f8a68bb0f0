package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// gRPC starts a goroutine for a call when its headers are there: before its message is, and
// before anybody can say that there are enough. A client may begin thousands on each of its
// connections and send nothing more. So calls are counted from then on, whichever service they
// are of, and one beyond what may be under way at a time is refused before its message is
// waited for. It has changed nothing.

// within gives a call that is no stream the time that it has, also for its message to be there:
// its own, but no more than the longest wait and what a call without a deadline is worked on.
// What has not begun to be carried out by then is not.
func (s Settings) within(ctx context.Context, call *tap.Info) (context.Context, error) {
	most := s.WantedForDefault + admission.WaitMax
	deadline, its := ctx.Deadline()
	if its && time.Until(deadline) <= most || !unary[call.FullMethodName] {
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

// unary are the full names of the methods that are no streams.
var unary = func() map[string]bool {
	names := make(map[string]bool)
	for _, service := range services {
		for _, method := range service.Methods {
			names["/"+service.ServiceName+"/"+method.MethodName] = true
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
	return bounded{server, calls, int64(most), logger}
}

type bounded struct {
	Server
	calls  *Calls
	most   int64
	logger *slog.Logger
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
			return handle(service, ctx, decode, interceptor)
		}
		within.Methods[i] = method
	}
	within.Streams = make([]grpc.StreamDesc, len(description.Streams))
	for i, stream := range description.Streams {
		handle, counted := stream.Handler, b.calls.methods[stream.StreamName]
		stream.Handler = func(service any, over grpc.ServerStream) error {
			if err := b.enter(counted); err != nil {
				return err
			}
			defer b.calls.underWay.Add(-1)
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
	if ended := b.calls.crowd.thin(b.most); ended > 0 {
		b.logger.Warn("ended connections over which calls were begun and not sent: no more may be under way", "connections", ended, "calls_max", b.most)
	}
	err := reason.Error(reason.Overloaded, fmt.Sprintf("as many calls are under way at this node as may be: %d", b.most))
	if counted != nil {
		counted.ended(time.Now(), nil, nil, err)
	}
	return err
}
