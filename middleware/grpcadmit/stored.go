package grpcadmit

import (
	"context"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"

	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/admit"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// ReplayedTrailer marks a replay. Its value is "true".
const ReplayedTrailer = "idempotent-replayed"

// contentType is the media type of what is stored, with the name of the message's type.
const contentType = "application/protobuf"

// codeHighest is the last of gRPC's codes.
const codeHighest = codes.Unauthenticated

// storedCodeHighest is the highest code that a record holds.
const storedCodeHighest = 999

// messageOf returns a request or response as a message of today's protobuf.
func messageOf(v any) (proto.Message, bool) {
	switch m := v.(type) {
	case proto.Message:
		return m, true
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(m), true
	}
	return nil, false
}

// storable returns an answer as it is stored. What cannot be sent, since it is no message or
// not a valid one, and what is over the limit is stored as one that was omitted; unstored says
// why.
func (g *guard) storable(response any, told *status.Status) (stored client.Response, unstored error) {
	code := int(min(told.Code(), storedCodeHighest))
	said := told.Proto()                                            // a copy
	said.Message = strings.ToValidUTF8(said.GetMessage(), "\uFFFD") // gRPC sends any bytes, and protobuf none but these
	var message proto.Message = said
	if told.Code() == codes.OK {
		if response == nil {
			return client.Response{}, nil // gRPC sends it as an empty message, whatever the type
		}
		var ok bool
		if message, ok = messageOf(response); !ok {
			return admit.Omitted(code, 0), fmt.Errorf("it is no proto message but a %T", response)
		}
	}
	body, err := deterministic().Marshal(message)
	switch {
	case err != nil:
		return admit.Omitted(code, 0), err
	case len(body) > g.ResponseLimit:
		return admit.Omitted(code, int64(len(body))), fmt.Errorf("it has %d bytes, and the limit is %d", len(body), g.ResponseLimit)
	}
	return client.Response{Code: code, ContentType: contentType + "; proto=" + string(proto.MessageName(message)), Body: body}, nil
}

// replay answers with what is stored. It may be what an operator wrote when settling, or
// another kind of client: what is no answer of gRPC is said not to be stored.
func (g *guard) replay(ctx context.Context, method string, question admit.Question, stored client.Response) (any, error) {
	response, told, err := read(method, stored)
	if err != nil {
		g.Logger.ErrorContext(ctx, "a stored response cannot be replayed", append(g.Named(question), "error", err)...)
	}
	if err != nil || stored.Omitted() {
		return nil, g.answer(ctx, refusal.Omitted(min(max(stored.Code, 0), storedCodeHighest)))
	}
	// It fails where there is no stream, as in tests of a handler; then there is no trailer.
	_ = grpc.SetTrailer(ctx, metadata.Pairs(ReplayedTrailer, "true"))
	if told != nil {
		return nil, told.Err()
	}
	return response, nil
}

// read reads what storable has written: a message, or a status that is not OK. A response that
// an operator wrote may lack its type: it is that of the method then.
func read(method string, stored client.Response) (response proto.Message, told *status.Status, err error) {
	if stored.Omitted() {
		return nil, nil, nil
	}
	name := protoreflect.FullName("")
	if stored.ContentType != "" {
		media, parameters, err := mime.ParseMediaType(stored.ContentType)
		if err != nil || media != contentType {
			return nil, nil, errors.New("it is not a proto message but " + strconv.Quote(stored.ContentType))
		}
		name = protoreflect.FullName(parameters["proto"])
	}
	wire := &statuspb.Status{}
	if stored.Code < 0 || stored.Code > int(codeHighest) && name != proto.MessageName(wire) {
		return nil, nil, errors.New("its code is none of gRPC")
	}
	if stored.Code != int(codes.OK) {
		if name != "" && name != proto.MessageName(wire) {
			return nil, nil, errors.New("it is not a status but a " + string(name))
		}
		if err := proto.Unmarshal(stored.Body, wire); err != nil {
			return nil, nil, err
		}
		if wire.GetCode() == 0 {
			wire.Code = int32(stored.Code)
		}
		return nil, status.FromProto(wire), nil
	}
	response = newMessage(method, name)
	return response, nil, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(stored.Body, response)
}

// newMessage returns a message of the type; without one, of the method's output type. Of a
// type that this build does not know it is an empty message, which keeps all fields as
// unknown ones: the caller gets the same bytes.
func newMessage(method string, name protoreflect.FullName) proto.Message {
	if name == "" {
		if described := describe(method); described != nil {
			name = described.Output().FullName()
		}
	}
	if kind, err := protoregistry.GlobalTypes.FindMessageByName(name); err == nil {
		return kind.New().Interface()
	}
	return &emptypb.Empty{}
}

// describe returns the descriptor of a full method, nil where it is not linked in.
func describe(method string) protoreflect.MethodDescriptor {
	name := strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", ".")
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(name))
	if err != nil {
		return nil
	}
	described, _ := found.(protoreflect.MethodDescriptor)
	return described
}
