package rpc

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/shard"
)

// gRPC answers a message that does not decode with Internal, and one that is too large
// with ResourceExhausted, after which a caller would back off and try again for ever.
// It writes such a status before a handler hears of it. Both are the caller's mistake,
// though, and are to be answered as one. So gRPC lets through more than is accepted,
// and the codec keeps the error in the envelope that a message arrives in, where the
// handler finds it.

// ServerOptions are the options that a server for these services must have: the bounds
// on messages and on what is sent ahead, the time that a call may take, the codec that lets a
// message that is too large or does not decode be answered with INVALID_ARGUMENT, and what
// large answers are counted by. Connections are accepted with the credentials, and are among the
// arriving until they speak HTTP/2.
func ServerOptions(accept credentials.TransportCredentials, arriving *Arriving, settings Settings) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.InTapHandle(settings.within),
		grpc.MaxRecvMsgSize(receivedBytesMax),
		grpc.ForceServerCodecV2(codecOfMessages()),
		grpc.Creds(linking{accept, arriving}),
		grpc.StaticStreamWindowSize(shard.StreamWindow),
		grpc.StaticConnWindowSize(shard.ConnectionWindow),
	}
}

// envelope is the message that it holds, to any codec but [tolerantCodec].
type envelope struct {
	protobuf.Message
	wrong error // with the message, as its sender is told
}

// tolerantCodec is gRPC's own codec, but for what is received in an [envelope], and for the
// buffers of what is sent, [answered] or forwarded: they are of its size. gRPC's own pool gives
// out such of 1 MiB for 33 KiB, which whoever does not read would have it keep.
type tolerantCodec struct{ encoding.CodecV2 }

// codecOfMessages is that of servers, and of forwarded calls.
func codecOfMessages() tolerantCodec { return tolerantCodec{encoding.GetCodecV2(proto.Name)} }

// Marshal implements encoding.CodecV2.
func (c tolerantCodec) Marshal(message any) (mem.BufferSlice, error) {
	switch m := message.(type) {
	case answered:
		return m.encode()
	case protobuf.Message:
		plain, err := protobuf.Marshal(m)
		return mem.BufferSlice{mem.SliceBuffer(plain)}, err
	}
	return c.CodecV2.Marshal(message)
}

// Unmarshal implements encoding.CodecV2.
func (c tolerantCodec) Unmarshal(data mem.BufferSlice, into any) error {
	e, ok := into.(*envelope)
	if !ok {
		return c.CodecV2.Unmarshal(data, into)
	}
	switch {
	case data.Len() > MessageBytesMax:
		e.wrong = tooLarge(data, e.ProtoReflect().Descriptor())
	case keepEncoded(data, e.Message):
	default:
		e.wrong = decode(data, e.Message)
	}
	return nil
}

// decode decodes what is not too large.
func decode(data mem.BufferSlice, into protobuf.Message) error {
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	if err := tooManyLines(raw.ReadOnlyData(), into); err != nil {
		return err
	}
	if protobuf.Unmarshal(raw.ReadOnlyData(), into) != nil {
		return notThisMessage()
	}
	return nil
}

// tooLarge is the error of a message that is not even decoded. Where the response to be
// stored is what makes it too large, the call may do without its body.
func tooLarge(data mem.BufferSlice, of protoreflect.MessageDescriptor) error {
	raw := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer raw.Free()
	for f := range fieldsOf(raw.ReadOnlyData()) {
		field := of.Fields().ByNumber(f.number)
		if field != nil && field.Message() != nil && field.Message().FullName() == responseName && len(f.value) > responseFieldMax {
			return reason.Violation(reason.ResponseTooLarge, string(field.Name()), fmt.Sprintf(
				"is %d bytes long, and no node stores more than %d", len(f.value), admission.ResponseBytesMax))
		}
	}
	return invalid("request", "is %d bytes long, the limit is %d", data.Len(), MessageBytesMax)
}

// tolerant returns the service with its messages in envelopes, its answers with what they
// hold, and its calls counted. What is not expected is refused before it is decoded.
func tolerant(description grpc.ServiceDesc, node *unsent, expected func(context.Context) error, calls *Calls) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(description.Methods))
	for i, method := range description.Methods {
		generated, counted := method.Handler, calls.methods[method.MethodName]
		method.Handler = func(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			began := time.Now()
			if err := expected(ctx); err != nil {
				counted.ended(began, nil, nil, err)
				return nil, err
			}
			var request any
			holds := &held{node: node, link: linkOf(ctx)}
			answer, err := generated(service, context.WithValue(ctx, heldKey{}, holds), func(message any) error {
				request = message
				e := &envelope{Message: message.(protobuf.Message)} //nolint:errcheck // generated code passes nothing else
				if err := decode(e); err != nil {
					return err
				}
				return e.wrong
			}, interceptor)
			counted.ended(began, request, answer, err)
			if err != nil {
				holds.end()
				return nil, err
			}
			return answered{answer.(protobuf.Message), holds}, nil //nolint:errcheck // as above
		}
		methods[i] = method
	}
	description.Methods = methods
	streams := make([]grpc.StreamDesc, len(description.Streams))
	for i, stream := range description.Streams {
		generated := stream.Handler
		stream.Handler = func(service any, over grpc.ServerStream) error {
			ended := reason.Error(reason.OutcomeUnknown, "") // of one that panics
			defer calls.opened(&ended)()
			if ended = expected(over.Context()); ended == nil {
				ended = generated(service, tolerantStream{over})
			}
			return ended
		}
		streams[i] = stream
	}
	description.Streams = streams
	return &description
}

// tolerantStream receives its messages in envelopes.
type tolerantStream struct{ grpc.ServerStream }

// RecvMsg implements grpc.ServerStream.
func (s tolerantStream) RecvMsg(message any) error {
	e := &envelope{Message: message.(protobuf.Message)} //nolint:errcheck // generated code passes nothing else
	if err := s.ServerStream.RecvMsg(e); err != nil {
		return err
	}
	return e.wrong
}
