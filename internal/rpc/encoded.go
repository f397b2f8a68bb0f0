package rpc

import (
	"iter"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

// The calls of one message of a session wait their turn, and decoded they take a multiple of what
// they take as they are sent: five times as much with a small Reserve each, forty times with calls
// that are empty. So they are kept as they came, where protobuf keeps what it does not know, and
// each is decoded when it is started.

// The numbers of SessionRequest.calls and of SessionCall.id.
const (
	callsField = 1
	idField    = 1
)

// responseName is what a response to be stored is called.
var responseName = (*coordinatorv1.Response)(nil).ProtoReflect().Descriptor().FullName()

// keepEncoded keeps a message as it came, if it is one of a session.
func keepEncoded(data mem.BufferSlice, into protobuf.Message) bool {
	request, ok := into.(*coordinatorv1.SessionRequest)
	if ok {
		protobuf.Reset(request)
		request.ProtoReflect().SetUnknown(data.Materialize())
	}
	return ok
}

// receivedCall is a call of a session as it came.
type receivedCall struct {
	call  *coordinatorv1.SessionCall
	wrong error // with the call, of which only the id is known then
}

// callsOf returns the calls of a message one after the other, up to the first that is none.
func callsOf(request *coordinatorv1.SessionRequest) iter.Seq2[receivedCall, error] {
	return func(yield func(receivedCall, error) bool) {
		for _, call := range request.GetCalls() { // of one that was not received
			if !yield(receivedCall{call: call}, nil) {
				return
			}
		}
		for f, ok := range fieldsOf(request.ProtoReflect().GetUnknown()) {
			if ok && f.number != callsField {
				continue // of a newer client
			}
			received := receivedCall{call: &coordinatorv1.SessionCall{}}
			encoded, ok := f.message()
			switch received.wrong = tooManyLines(encoded, received.call); {
			case !ok:
			case received.wrong != nil:
				received.call.Id = idOf(encoded)
			default:
				ok = protobuf.Unmarshal(encoded, received.call) == nil
			}
			if !ok {
				yield(receivedCall{}, notThisMessage())
				return
			}
			if !yield(received, nil) {
				return
			}
		}
	}
}

// idOf returns the id of an encoded call.
func idOf(encoded []byte) (id uint64) {
	for f := range fieldsOf(encoded) {
		if f.number == idField && f.kind == protowire.VarintType {
			id, _ = protowire.ConsumeVarint(f.value)
		}
	}
	return id
}

// tooManyLines returns an error where an encoded message has more lines of headers than any
// response may have. Such a message is not decoded: an empty line takes two bytes as it is sent
// and ninety as it is decoded, and nothing else that is sent becomes as much larger.
func tooManyLines(encoded []byte, into protobuf.Message) error {
	if len(encoded) <= 2*admission.HeadersMax {
		return nil
	}
	lines, where := linesOf(encoded, into.ProtoReflect().Descriptor())
	if lines <= admission.HeadersMax {
		return nil
	}
	return tooManyHeaders(where, lines)
}

// linesOf counts the lines of headers in an encoded message, and says which field of the call has
// them. A response may be there in many parts, of which protobuf makes one.
func linesOf(encoded []byte, of protoreflect.MessageDescriptor) (lines int, where string) {
	for f := range fieldsOf(encoded) {
		field := of.Fields().ByNumber(f.number)
		if field == nil || field.Message() == nil {
			continue
		}
		inner, ok := f.message()
		switch {
		case !ok:
		case field.IsList():
			lines++
		default:
			more, within := linesOf(inner, field.Message())
			if lines += more; more > 0 {
				where = within
				if field.Message().FullName() == responseName {
					where = string(field.Name())
				}
			}
		}
	}
	return lines, where
}

// field is one of an encoded message.
type field struct {
	number protowire.Number
	kind   protowire.Type
	value  []byte // with its length, where it has one
}

// fieldsOf returns the fields of an encoded message one after the other, and false at the first
// that is none.
func fieldsOf(encoded []byte) iter.Seq2[field, bool] {
	return func(yield func(field, bool) bool) {
		for len(encoded) > 0 {
			number, kind, tag := protowire.ConsumeTag(encoded)
			size := protowire.ConsumeFieldValue(number, kind, encoded[max(tag, 0):])
			if tag < 0 || size < 0 {
				yield(field{}, false)
				return
			}
			if !yield(field{number, kind, encoded[tag : tag+size]}, true) {
				return
			}
			encoded = encoded[tag+size:]
		}
	}
}

// message returns what is in a field that holds a message.
func (f field) message() (encoded []byte, ok bool) {
	if f.kind != protowire.BytesType {
		return nil, false
	}
	encoded, size := protowire.ConsumeBytes(f.value)
	return encoded, size >= 0
}

func notThisMessage() error { return invalid("request", "is not a message of this call") }
