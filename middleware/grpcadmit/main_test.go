package grpcadmit_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

func TestMain(m *testing.M) {
	register()
	code := m.Run()
	shared.stop()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// coordinator is one node on loopback with a client of it.
type coordinator struct {
	once   sync.Once
	node   *node.Node
	dir    string
	client *client.Client
}

// shared is the coordinator of all tests that do not break theirs.
var shared coordinator

func (c *coordinator) start(options ...client.DialOption) *client.Client {
	c.once.Do(func() {
		dir, err := os.MkdirTemp("", "grpcadmit")
		if err != nil {
			panic(err)
		}
		cfg := node.Default()
		cfg.DataDir, cfg.Listen, cfg.Shards = dir, "127.0.0.1:0", 1
		if c.node, err = node.Start(context.Background(), cfg); err != nil {
			panic(err)
		}
		c.dir = dir
		if c.client, err = client.Dial([]string{c.node.Address().String()}, options...); err != nil {
			panic(err)
		}
	})
	return c.client
}

func (c *coordinator) stop() {
	if c.node != nil {
		_ = c.client.Close()
		_ = c.node.Stop(context.Background())
		_ = os.RemoveAll(c.dir)
	}
}

// own starts a coordinator that the test may break.
func own(t *testing.T, options ...client.DialOption) *coordinator {
	t.Helper()
	c := &coordinator{}
	c.start(options...)
	t.Cleanup(c.stop)
	return c
}

// The methods of the service that the tests guard.
const (
	place = "/grpcadmit.test.Orders/Place" // a Struct in, a Struct out
	look  = "/grpcadmit.test.Orders/Look"  // the same, declared to change nothing
	watch = "/grpcadmit.test.Orders/Watch" // streams both ways
	wipe  = "/undescribed.Orders/Wipe"     // has no descriptor
)

// register makes the service's descriptor known, as generated code does.
func register() {
	method := func(name string, level descriptorpb.MethodOptions_IdempotencyLevel, stream bool) *descriptorpb.MethodDescriptorProto {
		return &descriptorpb.MethodDescriptorProto{
			Name: &name, InputType: proto.String(".google.protobuf.Struct"), OutputType: proto.String(".google.protobuf.Struct"),
			Options: &descriptorpb.MethodOptions{IdempotencyLevel: &level}, ClientStreaming: &stream, ServerStreaming: &stream,
		}
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("grpcadmit/test/orders.proto"), Package: proto.String("grpcadmit.test"), Syntax: proto.String("proto3"),
		Dependency: []string{"google/protobuf/struct.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Orders"), Method: []*descriptorpb.MethodDescriptorProto{
			method("Place", descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN, false),
			method("Look", descriptorpb.MethodOptions_NO_SIDE_EFFECTS, false),
			method("Watch", descriptorpb.MethodOptions_IDEMPOTENCY_UNKNOWN, true),
		}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		panic(err)
	}
	if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
		panic(err)
	}
}

// handler answers every method of the service.
type handler func(context.Context, *structpb.Struct) (any, error)

// service is the service whose unary methods the handler is.
func service(name string, run handler, methods ...string) *grpc.ServiceDesc {
	description := &grpc.ServiceDesc{ServiceName: name}
	for _, method := range methods {
		full := "/" + name + "/" + method
		description.Methods = append(description.Methods, grpc.MethodDesc{
			MethodName: method,
			Handler: func(_ any, ctx context.Context, decode func(any) error, guard grpc.UnaryServerInterceptor) (any, error) {
				request := &structpb.Struct{}
				if err := decode(request); err != nil {
					return nil, err
				}
				next := func(ctx context.Context, request any) (any, error) {
					typed, ok := request.(*structpb.Struct)
					if !ok {
						return nil, status.Errorf(codes.Internal, "the handler got a %T", request)
					}
					return run(ctx, typed)
				}
				return guard(ctx, request, &grpc.UnaryServerInfo{FullMethod: full}, next)
			},
		})
	}
	return description
}

// listen serves the handler behind the interceptors, and returns a connection to it.
func listen(run handler, interceptors []grpc.UnaryServerInterceptor, options ...grpc.DialOption) (conn *grpc.ClientConn, stop func()) {
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(interceptors...))
	orders := service("grpcadmit.test.Orders", run, "Place", "Look")
	orders.Streams = []grpc.StreamDesc{{
		StreamName: "Watch", ServerStreams: true, ClientStreams: true,
		Handler: func(_ any, stream grpc.ServerStream) error {
			request := &structpb.Struct{}
			if err := stream.RecvMsg(request); err != nil {
				return err
			}
			answer, err := run(stream.Context(), request)
			if err != nil {
				return err
			}
			return stream.SendMsg(answer)
		},
	}}
	server.RegisterService(orders, nil)
	server.RegisterService(service("undescribed.Orders", run, "Wipe"), nil)
	server.RegisterService(service("grpc.health.v1.Health", run, "Check"), nil)
	listener := bufconn.Listen(1 << 16)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	all := append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, options...)
	conn, err := grpc.NewClient("passthrough:///orders", all...)
	if err != nil {
		panic(err)
	}
	return conn, func() {
		_ = conn.Close()
		server.GracefulStop()
		<-served
	}
}

// recovers turns a panic into a status, as interceptors outside of a guard do.
func recovers(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = status.Errorf(codes.Internal, "recovered: %v", p)
		}
	}()
	return next(ctx, request)
}

// runs counts what is unique.
var runs atomic.Int64

// unique is a name that nothing else has, so that a test can run again (-count).
func unique(name string) string { return fmt.Sprint(name, " ", runs.Add(1)) }

// caller is whom the calls of one guard run as, and of no other.
func caller(name string) grpcadmit.Option { return as(unique(name)) }

func as(who string) grpcadmit.Option {
	return grpcadmit.WithPrincipal(func(context.Context) string { return who })
}

// serve guards a handler, with the test as its principal.
func serve(t *testing.T, run handler, options ...grpcadmit.Option) *grpc.ClientConn {
	t.Helper()
	return serveFor(t, shared.start(), run, options...)
}

func serveFor(t *testing.T, c *client.Client, run handler, options ...grpcadmit.Option) *grpc.ClientConn {
	t.Helper()
	all := append([]grpcadmit.Option{caller(t.Name())}, options...)
	conn, stop := listen(run, []grpc.UnaryServerInterceptor{recovers, grpcadmit.New(c, all...)})
	t.Cleanup(stop)
	return conn
}

// answered is a whole answer.
type answered struct {
	message proto.Message
	err     error
	trailer metadata.MD
}

func (a answered) replayed() bool {
	values := a.trailer.Get("idempotent-replayed")
	return len(values) == 1 && values[0] == "true"
}

func (a answered) reason() string {
	reason, _ := outgoing.Refusal(a.err)
	return reason
}

// invoke sends one call; no key where it is "-".
func invoke(ctx context.Context, conn grpc.ClientConnInterface, method, key string, request proto.Message) answered {
	if key != "-" {
		ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
	}
	a := answered{message: &structpb.Struct{}}
	a.err = conn.Invoke(ctx, method, request, a.message, grpc.Trailer(&a.trailer))
	return a
}

// send places an order.
func send(t *testing.T, conn grpc.ClientConnInterface, key string) answered {
	t.Helper()
	return invoke(t.Context(), conn, place, key, order("tea"))
}

// order is a request, and in these tests an answer too.
func order(item string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"item": structpb.NewStringValue(item)}}
}

// empty is a message none of whose fields is known.
func empty(unknown []byte) *emptypb.Empty {
	e := &emptypb.Empty{}
	e.ProtoReflect().SetUnknown(unknown)
	return e
}

// keyed is the context of a call with a key, without the wire.
func keyed(ctx context.Context, key string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("idempotency-key", key))
}

func infoOf(method string) *grpc.UnaryServerInfo { return &grpc.UnaryServerInfo{FullMethod: method} }

// want checks an answer of the interceptor itself.
func want(t *testing.T, a answered, reason grpcadmit.Reason, code codes.Code) {
	t.Helper()
	if a.reason() != string(reason) || status.Code(a.err) != code {
		t.Fatalf("answered %v (%s), want %v %s", a.err, a.reason(), code, reason)
	}
}

// eventually waits for what happens behind the scenes.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("it did not come to this: %s", what)
		}
	}
}
