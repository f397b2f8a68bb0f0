package outgoing_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
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

	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

func TestMain(m *testing.M) {
	code := m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

const place = "/outgoing.test.Orders/Place"

// server answers every method with what answer says of the try, and keeps the keys.
type server struct {
	mu     sync.Mutex
	keys   [][]string
	answer func(try int) error
}

func (s *server) serve(_ any, stream grpc.ServerStream) error {
	if err := stream.RecvMsg(&emptypb.Empty{}); err != nil {
		return err
	}
	s.mu.Lock()
	s.keys = append(s.keys, metadata.ValueFromIncomingContext(stream.Context(), "idempotency-key"))
	try := len(s.keys)
	s.mu.Unlock()
	if s.answer != nil {
		if err := s.answer(try); err != nil {
			return err
		}
	}
	return stream.SendMsg(&emptypb.Empty{})
}

// sent returns the key of every try so far, and forgets them.
func (s *server) sent(t *testing.T, tries int) []string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []string
	for _, values := range s.keys {
		if len(values) != 1 {
			t.Fatalf("a try had the keys %q", values)
		}
		keys = append(keys, values[0])
	}
	if len(keys) != tries {
		t.Fatalf("%d tries, want %d: %q", len(keys), tries, keys)
	}
	s.keys = nil
	return keys
}

func (s *server) listen(options ...grpc.DialOption) (conn *grpc.ClientConn, stop func()) {
	listener := bufconn.Listen(1 << 16)
	g := grpc.NewServer(grpc.UnknownServiceHandler(s.serve))
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///orders", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, options...)...)
	if err != nil {
		panic(err)
	}
	return conn, func() {
		_ = conn.Close()
		g.GracefulStop()
		<-served
	}
}

func start(t *testing.T, s *server, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, stop := s.listen(options...)
	t.Cleanup(stop)
	return conn
}

func call(ctx context.Context, conn grpc.ClientConnInterface, method string) error {
	return conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
}

// gRPC's own retries are tries of one call: all carry its key, and the next call has another.
func TestOneKeyOverAllTries(t *testing.T) {
	s := &server{answer: func(try int) error {
		if try%3 != 0 {
			return status.Error([]codes.Code{codes.Unavailable, codes.Aborted}[try%2], "again")
		}
		return nil
	}}
	conn := start(t, s, grpc.WithUnaryInterceptor(outgoing.New()), grpc.WithDefaultServiceConfig(outgoing.RetryServiceConfig))
	seen := map[string]bool{}
	for range 2 {
		if err := call(t.Context(), conn, place); err != nil {
			t.Fatal(err)
		}
		keys := s.sent(t, 3)
		if keys[0] != keys[1] || keys[1] != keys[2] || seen[keys[0]] {
			t.Errorf("the tries had the keys %q", keys)
		}
		if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(keys[0]) {
			t.Errorf("%q is no UUID of version 4", keys[0])
		}
		seen[keys[0]] = true
	}
}

// A loop of the caller's keeps the key by its context.
func TestOneKeyOverTheCallersLoop(t *testing.T) {
	s := &server{answer: func(try int) error {
		if try < 3 {
			return status.Error(codes.Internal, "no")
		}
		return nil
	}}
	conn := start(t, s, grpc.WithUnaryInterceptor(outgoing.New()))
	ctx := outgoing.ContextWithNewKey(t.Context())
	for call(ctx, conn, place) != nil {
	}
	if keys := s.sent(t, 3); keys[0] != keys[1] || keys[1] != keys[2] {
		t.Errorf("the tries had the keys %q", keys)
	}
}

func TestWhichKey(t *testing.T) {
	s := &server{}
	asked := 0
	conn := start(t, s, grpc.WithChainUnaryInterceptor(outgoing.New(outgoing.WithKeyFunc(func(_ context.Context, method string, _ any) string {
		asked++
		if method == place {
			return "order 42"
		}
		return ""
	})), outgoing.New())) // twice, by mistake
	own := metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", `"its own, as it is"`)
	for _, test := range []struct {
		ctx    context.Context
		method string
		want   string
	}{
		{own, place, `"its own, as it is"`},
		{outgoing.ContextWithKey(own, "of the context"), place, `"its own, as it is"`},
		{outgoing.ContextWithKey(t.Context(), "ctx"), place, "ctx"},
		{outgoing.ContextWithKey(t.Context(), `a"b\c;`), place, `"a\"b\\c;"`},
		{outgoing.ContextWithKey(t.Context(), ":a"), place, `":a"`},
		{t.Context(), place, `"order 42"`},
	} {
		if err := call(test.ctx, conn, test.method); err != nil {
			t.Fatal(err)
		}
		if keys := s.sent(t, 1); keys[0] != test.want {
			t.Errorf("sent %q, want %q", keys[0], test.want)
		}
	}
	if asked != 1 {
		t.Errorf("the function was asked %d times", asked)
	}
	if err := call(t.Context(), conn, "/outgoing.test.Orders/Other"); err != nil || len(s.sent(t, 1)[0]) != 36 {
		t.Errorf("%v", err)
	}
}

// A key that cannot be sent fails the call before anything is sent.
func TestKeyThatCannotBeSent(t *testing.T) {
	s := &server{}
	conn := start(t, s, grpc.WithUnaryInterceptor(outgoing.New()))
	for _, key := range []string{"", strings.Repeat("k", 256), "käse", "a\n"} {
		if err := call(outgoing.ContextWithKey(t.Context(), key), conn, place); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", key, err)
		}
	}
	s.sent(t, 0)
}

// What changes nothing gets no key.
func TestReadsHaveNoKey(t *testing.T) {
	level := descriptorpb.MethodOptions_NO_SIDE_EFFECTS
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("outgoing/test/orders.proto"), Package: proto.String("outgoing.test"),
		Dependency: []string{"google/protobuf/empty.proto"},
		Service: []*descriptorpb.ServiceDescriptorProto{{Name: proto.String("Orders"), Method: []*descriptorpb.MethodDescriptorProto{
			{Name: proto.String("Look"), InputType: proto.String(".google.protobuf.Empty"), OutputType: proto.String(".google.protobuf.Empty"),
				Options: &descriptorpb.MethodOptions{IdempotencyLevel: &level}},
		}}},
	}, protoregistry.GlobalFiles)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := protoregistry.GlobalFiles.FindFileByPath(file.Path()); err != nil {
		if err := protoregistry.GlobalFiles.RegisterFile(file); err != nil {
			t.Fatal(err)
		}
	}
	s := &server{}
	conn := start(t, s, grpc.WithUnaryInterceptor(outgoing.New()))
	for _, method := range []string{"/outgoing.test.Orders/Look", "/grpc.health.v1.Health/Check"} {
		if err := call(t.Context(), conn, method); err != nil {
			t.Fatal(err)
		}
		if keys := s.keys[len(s.keys)-1]; len(keys) != 0 {
			t.Errorf("%s got the keys %q", method, keys)
		}
	}
}

func TestRefusal(t *testing.T) {
	others, err := status.New(codes.Aborted, "no").WithDetails(&errdetails.ErrorInfo{Reason: "IDEMPOTENCY_IN_FLIGHT", Domain: "shop"}, &errdetails.RetryInfo{})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{nil, errors.New("no status"), status.Error(codes.Aborted, "no"), others.Err()} {
		if reason, after := outgoing.Refusal(err); reason != "" || after != 0 {
			t.Errorf("%v is taken for a refusal: %s, %v", err, reason, after)
		}
	}
}

func TestAnOptionThatIsNil(t *testing.T) {
	defer func() {
		if said := recover(); said != "outgoing: option 2 of New is nil" {
			t.Errorf("%v", said)
		}
	}()
	outgoing.New(outgoing.WithKeyFunc(func(context.Context, string, any) string { return "" }), nil)
}
