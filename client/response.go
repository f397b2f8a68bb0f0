package client

import (
	"math"
	"strconv"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// Response is what a guarded operation answered. Commit stores it, and every duplicate
// gets it back byte for byte. Headers, content type and body together are at most 1 MiB
// (a setting of the coordinator); more is [ErrResponseTooLarge].
type Response struct {
	// Code is a status, 0 to 999. What it means is the caller's: an HTTP status, an
	// exit code.
	Code int
	// Headers are kept in order, and names may repeat; 0 to 128.
	Headers []Header
	// ContentType is the body's media type. Valid UTF-8 without a control character.
	ContentType string
	// Body is any bytes.
	Body []byte
}

// Header is one name/value pair of a [Response], stored as given. It is one of HTTP
// (RFC 9110, section 5), so that whoever replays it may write it out as it is; another one is
// [ErrInvalidArgument]. Bytes that are no text go into it in base64, as gRPC does it in headers
// whose names end with -bin.
type Header struct {
	Name  string // 1 byte or more: letters, digits and !#$%&'*+-.^_`|~; "Trailer:" before it marks a trailer
	Value string // valid UTF-8 without a control character but the tab, also empty
}

// OmittedHeader marks the stored response of an operation that was done and whose own
// response could not be stored, because it was too large or not well-formed. Its value
// is the size of the body that was left out, in bytes. [Client.Do] stores it.
const OmittedHeader = "coordinator-response-omitted"

// Omitted reports whether this stands for a response that could not be stored.
func (r Response) Omitted() bool {
	for _, header := range r.Headers {
		if header.Name == OmittedHeader {
			return true
		}
	}
	return false
}

// omitted is what is stored in place of a response that cannot be.
func (r Response) omitted() Response {
	without := Response{Headers: []Header{{OmittedHeader, strconv.Itoa(len(r.Body))}}}
	if r.Code >= 0 && r.Code <= codeMost {
		without.Code = r.Code
	}
	return without
}

// wire returns the response as it is sent. Its body is the response's own: see commitCall.
func (r Response) wire() *coordinatorv1.Response {
	wire := &coordinatorv1.Response{
		Code: math.MaxUint32, ContentType: r.ContentType, Body: r.Body,
	}
	if r.Code >= 0 && r.Code < math.MaxUint32 {
		wire.Code = uint32(r.Code)
	} // else it stays one that is refused, if check has not done so
	for _, header := range r.Headers {
		wire.Headers = append(wire.Headers, &coordinatorv1.Header{Name: header.Name, Value: header.Value})
	}
	return wire
}

func responseOf(wire *coordinatorv1.Response) Response {
	r := Response{Code: int(wire.GetCode()), ContentType: wire.GetContentType(), Body: wire.GetBody()}
	for _, header := range wire.GetHeaders() {
		r.Headers = append(r.Headers, Header{header.GetName(), header.GetValue()})
	}
	return r
}
