package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/atmostonce/coordinator/internal/admission"
)

// A stored record, version 1. Numbers are unsigned varints in their shortest form,
// signed ones zigzagged; text is preceded by its length.
//
//	version 1 | state 1 | identity | tombstone or body | checksum 4
//
//	tombstone: ended attempts
//	body:      flags 1 | retention | pending deadline | ended at
//	           | response, if committed
//	           | fence | attempt | revision | settled from | holder 16
//	           | pending ttl | granted at | created, started, committed (signed)
//	           | fingerprint | owner | release reason
//	           | previous fence | previous reason | ended attempts
//	response:  hash 32 | bytes | nothing, or length + bytes, or length + checksum 4
//	ended:     count, then id 16 + ended at for each
//
// What an index needs comes first. The checksum is CRC-32C over the sequence and
// everything before it, little-endian; that of a response apart is over its bytes.
// The encoding is canonical: a record has one, and nothing else decodes to it.
const recordVersion = 1

const (
	flagHold          = 1 << 0
	flagLate          = 1 << 1
	previousShift     = 2 // two bits
	responseShift     = 4 // two bits
	flagsEnd          = 1 << 6
	checksumBytes     = 4
	attemptIDBytes    = len(admission.AttemptID{})
	responseHashBytes = 32

	// responseInlineBytesMax is the longest response that lies within its record.
	responseInlineBytesMax = 1024

	// endedAttemptsMax bounds what is read; how many a record may hold is for the
	// rules to say, and is less.
	endedAttemptsMax = 2 * admission.EndedAttemptsMax
)

// place says where a committed record's response lies.
type place uint8

const (
	placeNone   place = iota // there is none
	placeInline              // within the record
	placeApart               // in the bucket of responses, under the same sequence
)

// storedResponse is how a record refers to its response. The zero value is none.
type storedResponse struct {
	place    place
	length   int
	checksum uint32 // of a response apart
	inline   []byte
}

var (
	errRecordEncoding = errors.New("malformed record")
	errRecordChecksum = errors.New("wrong checksum of a record")
	checksumTable     = crc32.MakeTable(crc32.Castagnoli)
)

// newStoredResponse decides where the response goes.
func newStoredResponse(stored []byte) storedResponse {
	switch n := len(stored); {
	case n == 0:
		return storedResponse{}
	case n <= responseInlineBytesMax:
		return storedResponse{place: placeInline, length: n, inline: stored}
	default:
		return storedResponse{place: placeApart, length: n, checksum: crc32.Checksum(stored, checksumTable)}
	}
}

// encodeRecord returns the record as it is stored under the sequence, its response
// as given. The record's own sequence and Response.Stored are not looked at. A
// record that decodeRecord would not give back is an error: of the caller's making.
func encodeRecord(r *admission.Record, sequence uint64, response storedResponse) ([]byte, error) {
	if err := checkRecord(r); err != nil {
		return nil, err
	}
	if v := r.Identity.Validate(); v != nil {
		return nil, fmt.Errorf("%w: %v", errRecordEncoding, v)
	}
	b := make([]byte, 0, 256+len(response.inline)+len(r.Ended)*24)
	b = append(b, recordVersion, byte(r.State))
	b = r.Identity.AppendTo(b)
	if r.State != admission.StateNone {
		b = appendBody(b, r, response)
	}
	b = appendEnded(b, r.Ended)
	return binary.LittleEndian.AppendUint32(b, recordChecksum(sequence, b)), nil
}

func appendBody(b []byte, r *admission.Record, response storedResponse) []byte {
	flags := byte(r.Previous.End)<<previousShift | byte(response.place)<<responseShift
	if r.OnLapse == admission.Hold {
		flags |= flagHold
	}
	if r.Late {
		flags |= flagLate
	}
	b = append(b, flags)
	b = binary.AppendUvarint(b, uint64(r.Retention))
	b = binary.AppendUvarint(b, uint64(r.PendingDeadline))
	b = binary.AppendUvarint(b, uint64(r.EndedAt))
	if r.State == admission.StateCommitted {
		b = appendResponse(b, r.Response, response)
	}
	b = binary.AppendUvarint(b, r.Fence)
	b = binary.AppendUvarint(b, uint64(r.Attempt))
	b = binary.AppendUvarint(b, r.Revision)
	b = binary.AppendUvarint(b, r.SettledFrom)
	b = append(b, r.Holder[:]...)
	b = binary.AppendUvarint(b, uint64(r.PendingTTL))
	b = binary.AppendUvarint(b, uint64(r.GrantedAt))
	b = binary.AppendVarint(b, r.CreatedWallNanos)
	b = binary.AppendVarint(b, r.StartedWallNanos)
	b = binary.AppendVarint(b, r.CommittedWallNanos)
	b = appendText(b, string(r.Fingerprint))
	b = appendText(b, r.Owner)
	b = appendText(b, r.ReleaseReason)
	b = binary.AppendUvarint(b, r.Previous.Fence)
	return appendText(b, r.Previous.Reason)
}

func appendResponse(b []byte, r admission.Response, response storedResponse) []byte {
	b = append(b, r.Hash[:]...)
	b = binary.AppendUvarint(b, uint64(r.Bytes))
	switch response.place {
	case placeInline:
		b = binary.AppendUvarint(b, uint64(response.length))
		b = append(b, response.inline...)
	case placeApart:
		b = binary.AppendUvarint(b, uint64(response.length))
		b = binary.LittleEndian.AppendUint32(b, response.checksum)
	}
	return b
}

func appendEnded(b []byte, ended []admission.EndedAttempt) []byte {
	b = binary.AppendUvarint(b, uint64(len(ended)))
	for i := range ended {
		b = append(b, ended[i].ID[:]...)
		b = binary.AppendUvarint(b, uint64(ended[i].EndedAt))
	}
	return b
}

func appendText(b []byte, text string) []byte {
	b = binary.AppendUvarint(b, uint64(len(text)))
	return append(b, text...)
}

func recordChecksum(sequence uint64, encoded []byte) uint32 {
	key := sequenceKey(sequence)
	return crc32.Update(crc32.Checksum(key[:], checksumTable), checksumTable, encoded)
}

// sequenceKey is the key that a record and its response lie under.
func sequenceKey(sequence uint64) (key [8]byte) {
	binary.BigEndian.PutUint64(key[:], sequence)
	return key
}

// checkRecord holds what is true of every stored record beyond its encoding.
func checkRecord(r *admission.Record) error {
	fault := ""
	switch {
	case r.State >= admission.States:
		fault = "unknown state"
	case len(r.Ended) > endedAttemptsMax:
		fault = "too many ended attempts"
	case r.State == admission.StateNone && len(r.Ended) == 0:
		fault = "a tombstone that remembers nothing"
	case r.State != admission.StateCommitted && (r.Response.Bytes != 0 || r.Response.Hash != [responseHashBytes]byte{}):
		fault = "a response that was not committed"
	case r.OnLapse > admission.Hold:
		fault = "unknown on_lapse"
	case r.Previous.End > admission.EndedLapsed:
		fault = "unknown end of the previous attempt"
	case r.Retention < 0 || r.PendingTTL < 0:
		fault = "negative window"
	case r.PendingDeadline < 0 || r.EndedAt < 0 || r.GrantedAt < 0:
		fault = "negative time"
	case len(r.Fingerprint) > admission.FingerprintBytesMax:
		fault = "fingerprint too long"
	case len(r.Owner) > admission.OwnerBytesMax:
		fault = "owner too long"
	case len(r.ReleaseReason) > admission.NoteBytesMax || len(r.Previous.Reason) > admission.NoteBytesMax:
		fault = "reason too long"
	default:
		for i := range r.Ended {
			if r.Ended[i].EndedAt < 0 {
				fault = "negative time"
			}
		}
	}
	if fault != "" {
		return fmt.Errorf("%w: %s", errRecordEncoding, fault)
	}
	return nil
}

// decodeRecord is the inverse of encodeRecord. The record shares nothing with the
// value; its Response.Stored is nil. The inline part of the stored response is a
// part of the value.
func decodeRecord(sequence uint64, value []byte) (*admission.Record, storedResponse, error) {
	encoded, err := verifyRecord(sequence, value)
	if err != nil {
		return nil, storedResponse{}, err
	}
	d := decoder{rest: encoded}
	r := &admission.Record{Sequence: sequence}
	var response storedResponse
	if d.byte() != recordVersion {
		d.fail()
	}
	r.State = admission.State(d.byte())
	if !d.bad {
		r.Identity, d.rest, err = admission.DecodeIdentity(d.rest)
		d.bad = err != nil
	}
	if r.State != admission.StateNone {
		response = d.body(r)
	}
	d.ended(r)
	if d.bad || len(d.rest) > 0 {
		return nil, storedResponse{}, errRecordEncoding
	}
	if err := checkRecord(r); err != nil {
		return nil, storedResponse{}, err
	}
	return r, response, nil
}

// verifyRecord returns the value without its checksum, which is right.
func verifyRecord(sequence uint64, value []byte) ([]byte, error) {
	if len(value) < checksumBytes {
		return nil, errRecordEncoding
	}
	encoded := value[:len(value)-checksumBytes]
	if recordChecksum(sequence, encoded) != valueChecksum(value) {
		return nil, errRecordChecksum
	}
	return encoded, nil
}

// valueChecksum is the checksum at the end of a stored record.
func valueChecksum(value []byte) uint32 {
	return binary.LittleEndian.Uint32(value[len(value)-checksumBytes:])
}

func (d *decoder) body(r *admission.Record) storedResponse {
	response := d.front(r)
	r.Fence = d.uvarint()
	r.Attempt = uint32(d.bounded(math.MaxUint32))
	r.Revision = d.uvarint()
	r.SettledFrom = d.uvarint()
	d.attempt(&r.Holder)
	r.PendingTTL = d.duration()
	r.GrantedAt = d.time()
	r.CreatedWallNanos = d.varint()
	r.StartedWallNanos = d.varint()
	r.CommittedWallNanos = d.varint()
	if fingerprint := d.text(); len(fingerprint) > 0 {
		r.Fingerprint = append([]byte(nil), fingerprint...)
	}
	r.Owner = string(d.text())
	r.ReleaseReason = string(d.text())
	r.Previous.Fence = d.uvarint()
	r.Previous.Reason = string(d.text())
	return response
}

// front reads the part of a body that the index needs.
func (d *decoder) front(r *admission.Record) storedResponse {
	flags := d.byte()
	if flags >= flagsEnd {
		d.fail()
	}
	if flags&flagHold != 0 {
		r.OnLapse = admission.Hold
	}
	r.Late = flags&flagLate != 0
	r.Previous.End = admission.PreviousEnd(flags >> previousShift & 3)
	r.Retention = d.duration()
	r.PendingDeadline = d.time()
	r.EndedAt = d.time()
	response := storedResponse{place: place(flags >> responseShift & 3)}
	if r.State == admission.StateCommitted {
		d.response(r, &response)
	} else if response.place != placeNone {
		d.fail()
	}
	return response
}

func (d *decoder) response(r *admission.Record, response *storedResponse) {
	copy(r.Response.Hash[:], d.take(responseHashBytes))
	r.Response.Bytes = uint32(d.bounded(math.MaxUint32))
	switch response.place {
	case placeNone:
		return
	case placeInline:
		response.length = int(d.bounded(responseInlineBytesMax))
		response.inline = d.take(uint64(response.length))
		if response.length == 0 {
			d.fail()
		}
	case placeApart:
		response.length = int(d.bounded(math.MaxInt32))
		response.checksum = d.uint32()
		if response.length <= responseInlineBytesMax {
			d.fail()
		}
	default:
		d.fail()
	}
}

func (d *decoder) ended(r *admission.Record) {
	count := d.bounded(endedAttemptsMax)
	if count == 0 || d.bad {
		return
	}
	r.Ended = make([]admission.EndedAttempt, count)
	for i := range r.Ended {
		d.attempt(&r.Ended[i].ID)
		r.Ended[i].EndedAt = d.time()
	}
}
