package rpc

import (
	"iter"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// The calls of one message of a session wait their turn, and decoded they take a multiple of what
// they take as they are sent: five times as much with a small Reserve each, forty times with calls
// that are empty. So they are kept as they came, where protobuf keeps what it does not know, and
// each is decoded when it is started.

// callsField is the number of SessionRequest.calls.
const callsField = 1

// keepEncoded keeps a message as it came, if it is one of a session.
func keepEncoded(data mem.BufferSlice, into protobuf.Message) bool {
	request, ok := into.(*coordinatorv1.SessionRequest)
	if ok {
		protobuf.Reset(request)
		request.ProtoReflect().SetUnknown(data.Materialize())
	}
	return ok
}

// callsOf returns the calls of a message one after the other, up to the first that is none.
func callsOf(request *coordinatorv1.SessionRequest) iter.Seq2[*coordinatorv1.SessionCall, error] {
	return func(yield func(*coordinatorv1.SessionCall, error) bool) {
		for _, call := range request.GetCalls() { // of one that was not received
			if !yield(call, nil) {
				return
			}
		}
		for rest := request.ProtoReflect().GetUnknown(); len(rest) > 0; {
			number, kind, tag := protowire.ConsumeTag(rest)
			size := protowire.ConsumeFieldValue(number, kind, rest[max(tag, 0):])
			if tag < 0 || size < 0 {
				yield(nil, notThisMessage())
				return
			}
			value := rest[tag : tag+size]
			rest = rest[tag+size:]
			if number != callsField {
				continue // of a newer client
			}
			encoded, ok := bytesOf(kind, value)
			call := &coordinatorv1.SessionCall{}
			if !ok || protobuf.Unmarshal(encoded, call) != nil {
				yield(nil, notThisMessage())
				return
			}
			if !yield(call, nil) {
				return
			}
		}
	}
}

// bytesOf returns what is in the value of a field that holds a message.
func bytesOf(kind protowire.Type, value []byte) (encoded []byte, ok bool) {
	if kind != protowire.BytesType {
		return nil, false
	}
	encoded, size := protowire.ConsumeBytes(value)
	return encoded, size >= 0
}

func notThisMessage() error { return invalid("request", "is not a message of this call") }
