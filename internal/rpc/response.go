package rpc

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"runtime"

	"github.com/klauspost/compress/zstd"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

// A stored response is a version byte and the canonical form of the response, as it
// is or compressed. The canonical form is what is hashed:
//
//	code (uvarint) · number of headers (uvarint) · each name and value · content
//	type · body
//
// with each text behind its length as an unsigned varint. Two responses have one
// form exactly if they are equal, so that a hash of it decides a conflict.
const (
	storedPlain byte = 1 // the canonical form follows
	storedZstd  byte = 2 // a zstd frame of the canonical form follows
)

// canonicalBytesMax is the size of the largest canonical form: the largest response
// and its framing.
const canonicalBytesMax = admission.ResponseBytesMax + (4+2*admission.HeadersMax)*binary.MaxVarintLen32

// errStoredResponse reports bytes that no [codec.encode] has written, or that are
// not what was committed.
var errStoredResponse = errors.New("rpc: a stored response does not decode to what was committed")

// codec encodes and decodes stored responses. It may be used from any number of
// goroutines; as many as there are processors compress at once, the others wait.
type codec struct {
	compressFrom int
	encoder      *zstd.Encoder
	decoder      *zstd.Decoder
}

func newCodec(compressFrom int) (*codec, error) {
	// Neither starts a goroutine: both are used for whole buffers only.
	encoder, err := zstd.NewWriter(nil,
		zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithWindowSize(1<<20),
		zstd.WithLowerEncoderMem(true),
		zstd.WithEncoderCRC(false)) // the hash says more
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil,
		zstd.WithDecoderConcurrency(runtime.GOMAXPROCS(0)),
		zstd.WithDecoderMaxMemory(canonicalBytesMax),
		zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, err
	}
	return &codec{compressFrom: compressFrom, encoder: encoder, decoder: decoder}, nil
}

// responseBytes is the size that the limit speaks of: headers, content type and body.
func responseBytes(r *coordinatorv1.Response) int {
	size := len(r.GetContentType()) + len(r.GetBody())
	for _, header := range r.GetHeaders() {
		size += len(header.GetName()) + len(header.GetValue())
	}
	return size
}

// encode returns the response as the rules and the store see it. The response has
// been checked. Nil is the empty response.
func (c *codec) encode(r *coordinatorv1.Response) admission.Response {
	size := responseBytes(r)
	stored := make([]byte, 1, 1+size+(4+2*len(r.GetHeaders()))*binary.MaxVarintLen32)
	stored[0] = storedPlain
	stored = appendCanonical(stored, r)
	canonical := stored[1:]
	encoded := admission.Response{
		Hash: sha256.Sum256(canonical), Bytes: uint32(size), Stored: stored,
	}
	if len(canonical) >= c.compressFrom {
		packed := c.encoder.EncodeAll(canonical, append(make([]byte, 0, len(canonical)), storedZstd))
		if len(packed) <= len(stored)-len(stored)/8 {
			encoded.Stored = packed
		}
	}
	return encoded
}

// decode is the inverse of [codec.encode].
func (c *codec) decode(stored []byte, hash [32]byte) (*coordinatorv1.Response, error) {
	if len(stored) == 0 {
		return nil, errStoredResponse
	}
	canonical := stored[1:]
	switch stored[0] {
	case storedPlain:
	case storedZstd:
		var err error
		if canonical, err = c.decoder.DecodeAll(canonical, nil); err != nil {
			return nil, errors.Join(errStoredResponse, err)
		}
	default:
		return nil, errStoredResponse
	}
	if sha256.Sum256(canonical) != hash {
		return nil, errStoredResponse
	}
	return parseCanonical(canonical)
}

func appendCanonical(dst []byte, r *coordinatorv1.Response) []byte {
	dst = binary.AppendUvarint(dst, uint64(r.GetCode()))
	dst = binary.AppendUvarint(dst, uint64(len(r.GetHeaders())))
	for _, header := range r.GetHeaders() {
		dst = appendText(dst, header.GetName())
		dst = appendText(dst, header.GetValue())
	}
	dst = appendText(dst, r.GetContentType())
	return appendText(dst, r.GetBody())
}

func appendText[T string | []byte](dst []byte, text T) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}

// parseCanonical accepts what [appendCanonical] writes of a response that was
// checked, and nothing else.
func parseCanonical(src []byte) (*coordinatorv1.Response, error) {
	p := canonicalParser{rest: src}
	r := &coordinatorv1.Response{Code: uint32(p.number(admission.ResponseCodeMax))}
	if count := p.number(admission.HeadersMax); count > 0 {
		r.Headers = make([]*coordinatorv1.Header, 0, count)
		for range count {
			r.Headers = append(r.Headers, &coordinatorv1.Header{Name: string(p.text()), Value: string(p.text())})
		}
	}
	r.ContentType = string(p.text())
	r.Body = p.text()
	if p.failed || len(p.rest) > 0 {
		return nil, errStoredResponse
	}
	return r, nil
}

type canonicalParser struct {
	rest   []byte
	failed bool
}

// number reads a number of at most the given size, in its shortest encoding.
func (p *canonicalParser) number(most uint64) uint64 {
	value, n := binary.Uvarint(p.rest)
	if p.failed || n <= 0 || (n > 1 && p.rest[n-1] == 0) || value > most {
		p.failed = true
		return 0
	}
	p.rest = p.rest[n:]
	return value
}

// text returns a part of the source.
func (p *canonicalParser) text() []byte {
	size := p.number(uint64(len(p.rest)))
	if p.failed || size > uint64(len(p.rest)) {
		p.failed = true
		return nil
	}
	text := p.rest[:size:size]
	p.rest = p.rest[size:]
	return text
}
