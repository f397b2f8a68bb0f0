package rpc

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
)

// gRPC answers a message that does not decode with Internal, and writes that status
// before a handler hears of it. It is the caller's mistake, though, and is to be
// answered as one. So the codec keeps such an error in the envelope that a message
// arrives in, and the handler finds it there.

// ServerOptions are the options that a server for these services must have: the bound
// on messages, and the codec that lets a message that does not decode be answered
// with INVALID_ARGUMENT.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MessageBytesMax),
		grpc.ForceServerCodecV2(tolerantCodec{encoding.GetCodecV2(proto.Name)}),
	}
}

// envelope is the message that it holds, to any codec but [tolerantCodec].
type envelope struct {
	protobuf.Message
	malformed bool
}

// tolerantCodec is gRPC's own codec for everything but what is in an [envelope].
type tolerantCodec struct{ encoding.CodecV2 }

// Unmarshal implements encoding.CodecV2.
func (c tolerantCodec) Unmarshal(data mem.BufferSlice, into any) error {
	e, ok := into.(*envelope)
	if !ok {
		return c.CodecV2.Unmarshal(data, into)
	}
	e.malformed = c.CodecV2.Unmarshal(data, e.Message) != nil
	return nil
}

// tolerant returns the service with its messages in envelopes.
func tolerant(description grpc.ServiceDesc) *grpc.ServiceDesc {
	methods := make([]grpc.MethodDesc, len(description.Methods))
	for i, method := range description.Methods {
		generated := method.Handler
		method.Handler = func(service any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return generated(service, ctx, func(message any) error {
				e := &envelope{Message: message.(protobuf.Message)} //nolint:errcheck // generated code passes nothing else
				if err := decode(e); err != nil {
					return err
				}
				if e.malformed {
					return invalid("request", "is not a message of this call")
				}
				return nil
			}, interceptor)
		}
		methods[i] = method
	}
	description.Methods = methods
	return &description
}
