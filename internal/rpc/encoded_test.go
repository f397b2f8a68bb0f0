package rpc

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/internal/reason"
)

// received is a message of a session as the codec gives it to a handler.
func received(t testing.TB, encoded []byte) *coordinatorv1.SessionRequest {
	t.Helper()
	e := &envelope{Message: &coordinatorv1.SessionRequest{}}
	codec := tolerantCodec{encoding.GetCodecV2(proto.Name)}
	if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, e); err != nil || e.wrong != nil {
		t.Fatal(err, e.wrong)
	}
	return e.Message.(*coordinatorv1.SessionRequest)
}

// What waits in a session is as large as it was sent, whatever its calls are like.
func TestCallsOfASessionWaitEncoded(t *testing.T) {
	const calls = 1 << 20
	encoded := bytes.Repeat([]byte{callsField<<3 | 2, 0}, calls) // calls that are empty
	allocations := testing.AllocsPerRun(3, func() {
		for range callsOf(received(t, encoded)) {
			break
		}
	})
	// All of the process are counted, also those of what tests before have left running.
	if allocations > calls/1000 {
		t.Errorf("%v allocations before the second of %d calls is asked for", allocations, calls)
	}
	got := 0
	for _, err := range callsOf(received(t, encoded)) {
		if err != nil {
			t.Fatal(err)
		}
		got++
	}
	if got != calls {
		t.Errorf("%d calls of %d", got, calls)
	}
}

func TestCallsOfASessionAreDecoded(t *testing.T) {
	want := &coordinatorv1.SessionRequest{}
	for id := range uint64(5) {
		want.Calls = append(want.Calls, &coordinatorv1.SessionCall{Id: id, Call: &coordinatorv1.SessionCall_Reserve{
			Reserve: &coordinatorv1.ReserveRequest{Identity: &coordinatorv1.Identity{Key: "k"}},
		}})
	}
	encoded, err := protobuf.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	newer := append([]byte{7 << 3, 1, 8<<3 | 2, 1, 'x'}, encoded...) // fields that are not known here
	for name, c := range map[string]struct {
		encoded []byte
		calls   int
		wrong   bool
	}{
		"none":                         {nil, 0, false},
		"all":                          {encoded, 5, false},
		"from a newer client":          {newer, 5, false},
		"cut short":                    {encoded[:len(encoded)-1], 4, true},
		"a call that is no message":    {append(bytes.Clone(encoded), callsField<<3|2, 1, 0xff), 5, true},
		"calls that are a number":      {append(bytes.Clone(encoded), callsField<<3, 1), 5, true},
		"a group that does not end":    {append(bytes.Clone(encoded), callsField<<3|3), 5, true},
		"a tag that is none":           {append(bytes.Clone(encoded), 0xff), 5, true},
		"a length that is out of room": {append(bytes.Clone(encoded), callsField<<3|2, 0xff, 0xff, 0xff, 0xff, 0x0f), 5, true},
	} {
		got := 0
		var wrong error
		for call, err := range callsOf(received(t, c.encoded)) {
			if err != nil {
				wrong = err
				continue
			}
			if call.wrong != nil || !protobuf.Equal(call.call, want.Calls[got]) {
				t.Errorf("%s: call %d is %v, %v", name, got, call.call, call.wrong)
			}
			got++
		}
		if got != c.calls || (wrong != nil) != c.wrong || wrong != nil && reason.Of(wrong).Reason != reason.InvalidArgument {
			t.Errorf("%s: %d calls, %v", name, got, wrong)
		}
	}
}

// An empty line of headers takes two bytes as it is sent and ninety as it is decoded, so a message
// with more of them than any response may have is refused without that, wherever they are in it.
func TestLinesOfHeadersAreCountedBeforeTheyAreDecoded(t *testing.T) {
	const lines = 1 << 19
	within := func(number protowire.Number, encoded []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), encoded)
	}
	headers := bytes.Repeat([]byte{2<<3 | 2, 0}, lines)
	commit := within(3, headers)
	scattered := bytes.Repeat(within(3, headers[:2*64]), lines/64) // of one response, as protobuf has it
	call := append([]byte{1 << 3, 7}, within(4, commit)...)
	codec := tolerantCodec{encoding.GetCodecV2(proto.Name)}
	byItself := func(into protobuf.Message) func([]byte) error {
		return func(encoded []byte) error {
			e := &envelope{Message: into}
			if err := codec.Unmarshal(mem.BufferSlice{mem.SliceBuffer(encoded)}, e); err != nil {
				t.Error(err)
			}
			return e.wrong
		}
	}
	inSession := func(encoded []byte) (wrong error) {
		for call, err := range callsOf(received(t, encoded)) {
			if err != nil || call.call.GetId() != 7 {
				t.Errorf("call %d, %v", call.call.GetId(), err)
			}
			wrong = call.wrong
		}
		return wrong
	}
	for name, c := range map[string]struct {
		field   string
		encoded []byte
		decode  func([]byte) error
	}{
		"a commit":                  {"response.headers", commit, byItself(&coordinatorv1.CommitRequest{})},
		"a commit in many parts":    {"response.headers", scattered, byItself(&coordinatorv1.CommitRequest{})},
		"a settlement":              {"applied.headers", within(3, headers), byItself(&coordinatorv1.ResolveRequest{})},
		"a commit of a session":     {"response.headers", within(callsField, call), inSession},
		"one with its id behind it": {"response.headers", within(callsField, append(within(4, commit), 1<<3, 7)), inSession},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := c.decode(c.encoded)
		runtime.ReadMemStats(&after)
		failure := reason.Of(err)
		if len(failure.Violations) != 1 || failure.Reason != reason.InvalidArgument || failure.Violations[0].Field != c.field ||
			!strings.Contains(failure.Violations[0].Detail, fmt.Sprintf("%d lines, the limit is %d", lines, admission.HeadersMax)) {
			t.Errorf("%s: %+v", name, failure)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > uint64(8*len(c.encoded)) {
			t.Errorf("%s: %d bytes of memory for %d that were sent", name, took, len(c.encoded))
		}
	}
}
