package grpcadmit_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/typepb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/atmostonce/coordinator/middleware/grpcadmit"
	"github.com/atmostonce/coordinator/middleware/grpcadmit/outgoing"
)

// Without the wire, whose client refuses some of these by itself.
func TestKeys(t *testing.T) {
	longest := strings.Repeat("k", 255)
	for _, test := range []struct {
		values []string
		key    string // "": it is refused
	}{
		{[]string{"abc"}, "abc"},
		{[]string{`"abc"`}, "abc"},
		{[]string{" abc\t"}, "abc"},
		{[]string{`"a b,c;\"\\"`}, `a b,c;"\`},
		{[]string{longest}, longest},
		{[]string{`"` + longest + `"`}, longest},
		{[]string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}, "8e03978e-40d5-43dd-bc93-6894a57f9324"},
		{[]string{"a-._~:/+=@!#$%&*^|"}, "a-._~:/+=@!#$%&*^|"},
		{[]string{""}, ""},
		{[]string{" "}, ""},
		{[]string{`""`}, ""},
		{[]string{"a", "a"}, ""},
		{[]string{"a", ""}, ""},
		{[]string{"a,a"}, ""},
		{[]string{"a b"}, ""},
		{[]string{":YQ==:"}, ""},
		{[]string{`"abc`}, ""},
		{[]string{`"abc" "abc"`}, ""},
		{[]string{`abc"`}, ""},
		{[]string{longest + "k"}, ""},
		{[]string{`"` + longest + `k"`}, ""},
		{[]string{"käse"}, ""},
		{[]string{`"käse"`}, ""},
		{[]string{"a\x00"}, ""},
		{[]string{"\xff"}, ""},
		{[]string{"a\n"}, ""},
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"idempotency-key": test.values})
		seen := ""
		guard := grpcadmit.New(shared.start(), caller(t.Name()))
		_, err := guard(ctx, &structpb.Struct{}, &grpc.UnaryServerInfo{FullMethod: wipe}, func(ctx context.Context, _ any) (any, error) {
			seen = grpcadmit.Reservation(ctx).Identity().Key
			grpcadmit.MarkNotApplied(ctx) // forms of the same key are further below
			return &structpb.Struct{}, nil
		})
		reason, _ := outgoing.Refusal(err)
		if seen != test.key || (reason == string(grpcadmit.ReasonKeyInvalid)) != (test.key == "") {
			t.Errorf("%q: the key was %q, the answer %v", test.values, seen, err)
		}
	}
}

// What the caller's half sends is the key that the guard finds, whatever it is made of.
func TestKeysOverTheWire(t *testing.T) {
	conn, stop := listen(func(ctx context.Context, _ *structpb.Struct) (any, error) {
		return order(grpcadmit.Reservation(ctx).Identity().Key), nil
	}, []grpc.UnaryServerInterceptor{grpcadmit.New(shared.start(), caller(t.Name()))}, grpc.WithUnaryInterceptor(outgoing.New()))
	t.Cleanup(stop)
	var printable []byte
	for c := byte(' '); c <= '~'; c++ {
		printable = append(printable, c)
	}
	for _, key := range []string{
		string(printable), strings.Repeat(`"`, 255), strings.Repeat(`\`, 255), strings.Repeat("k", 255), " ", " a ", ":a", `"a"`, "a;b=1", "a, b", "1.5", "?1",
	} {
		a := invoke(outgoing.ContextWithKey(t.Context(), key), conn, place, "-", order("tea"))
		if a.err != nil || !proto.Equal(a.message, order(key)) {
			t.Errorf("%q became %v, %v", key, a.message, a.err)
		}
	}
}

// A key in the request, as AIP-155 has it.
func TestKeyFromField(t *testing.T) {
	nested := &typepb.Type{Name: "n", SourceContext: nil}
	for name, test := range map[string]struct {
		source  grpcadmit.KeySource
		request proto.Message
		key     string
	}{
		"there":         {grpcadmit.KeyFromField("value"), wrapperspb.String("k"), "k"},
		"empty":         {grpcadmit.KeyFromField("value"), wrapperspb.String(""), ""},
		"no such field": {grpcadmit.KeyFromField("request_id"), wrapperspb.String("k"), ""},
		"no string":     {grpcadmit.KeyFromField("value"), wrapperspb.Int64(1), ""},
		"a map":         {grpcadmit.KeyFromField("fields", "key"), order("tea"), ""},
		"nested, unset": {grpcadmit.KeyFromField("source_context", "file_name"), nested, ""},
		"no message":    {grpcadmit.KeyFromField("name", "file_name"), nested, ""},
	} {
		if key, err := test.source(t.Context(), test.request); key != test.key || err != nil {
			t.Errorf("%s: %q, %v", name, key, err)
		}
	}
	guard := grpcadmit.New(shared.start(), caller(t.Name()), grpcadmit.WithKeys(grpcadmit.KeyFromField("value")), grpcadmit.WithKeyRequired())
	for value, reason := range map[string]grpcadmit.Reason{
		"a key, as it is": "", "": grpcadmit.ReasonKeyMissing, "käse": "",
		strings.Repeat("k", 256): grpcadmit.ReasonKeyInvalid,
	} {
		_, err := guard(t.Context(), wrapperspb.String(value), &grpc.UnaryServerInfo{FullMethod: wipe},
			func(context.Context, any) (any, error) { return &structpb.Struct{}, nil })
		if got, _ := outgoing.Refusal(err); got != string(reason) {
			t.Errorf("%q: answered %v, want %q", value, err, reason)
		}
	}
}

func TestFingerprints(t *testing.T) {
	sum := func(f grpcadmit.Fingerprint, method string, request proto.Message) string {
		fingerprint, err := f(method, request)
		if err != nil || len(fingerprint) != 32 {
			t.Fatalf("%x, %v", fingerprint, err)
		}
		return string(fingerprint)
	}
	whole := grpcadmit.WholeRequest()
	seen := map[string]string{}
	for name, fingerprint := range map[string]string{
		"a string":       sum(whole, place, wrapperspb.String("a")),
		"another string": sum(whole, place, wrapperspb.String("b")),
		"bytes":          sum(whole, place, wrapperspb.Bytes([]byte("a"))), // the same on the wire
		"another method": sum(whole, wipe, wrapperspb.String("a")),
		"unknown fields": sum(whole, place, empty([]byte{8, 1})),
		"no fields":      sum(whole, place, empty(nil)),
	} {
		if other, ok := seen[fingerprint]; ok {
			t.Errorf("%s and %s meet", name, other)
		}
		seen[fingerprint] = name
	}
	without := grpcadmit.WithoutFields("name", "of_no_message")
	request := &typepb.Type{Name: "a", Oneofs: []string{"x"}}
	if sum(without, place, request) != sum(without, place, &typepb.Type{Name: "b", Oneofs: []string{"x"}}) {
		t.Error("the field left out counts")
	}
	if sum(without, place, request) == sum(without, place, &typepb.Type{Name: "a", Oneofs: []string{"y"}}) {
		t.Error("a field that was not left out does not count")
	}
	if request.GetName() != "a" {
		t.Error("the request was changed")
	}
}
