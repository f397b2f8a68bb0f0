package store

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// decoder reads an encoding from front to back. After the first fault it reads
// zeros and stays bad.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) fail() {
	d.bad = true
	d.rest = nil
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.rest)) {
		d.fail()
		return nil
	}
	taken := d.rest[:n]
	d.rest = d.rest[n:]
	return taken
}

func (d *decoder) byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if n <= 0 || n > 1 && d.rest[n-1] == 0 {
		d.fail()
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

func (d *decoder) varint() int64 {
	v := d.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

// bounded reads a number that is at most most.
func (d *decoder) bounded(most uint64) uint64 {
	v := d.uvarint()
	if v > most {
		d.fail()
		return 0
	}
	return v
}

func (d *decoder) time() admission.Time            { return admission.Time(d.bounded(math.MaxInt64)) }
func (d *decoder) duration() time.Duration         { return time.Duration(d.bounded(math.MaxInt64)) }
func (d *decoder) text() []byte                    { return d.take(d.uvarint()) }
func (d *decoder) attempt(id *admission.AttemptID) { copy(id[:], d.take(uint64(attemptIDBytes))) }

func (d *decoder) uint32() uint32 {
	if b := d.take(checksumBytes); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}
