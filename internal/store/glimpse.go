package store

import "github.com/atmostonce/coordinator/internal/admission"

// glimpse is what the index needs of a record. Its slices are parts of the value.
type glimpse struct {
	identity  []byte // encoded
	namespace []byte
	state     admission.State
	alarm     admission.Time
	response  storedResponse
	checksum  uint32
}

// glance reads what the index needs without allocating anything. It checks the
// checksum, so that what it does not read is as it was written.
func glance(sequence uint64, value []byte) (glimpse, error) {
	encoded, err := verifyRecord(sequence, value)
	if err != nil {
		return glimpse{}, err
	}
	d := decoder{rest: encoded}
	if d.byte() != recordVersion {
		d.fail()
	}
	var r admission.Record
	var last [1]admission.EndedAttempt
	g := glimpse{state: admission.State(d.byte()), checksum: valueChecksum(value)}
	r.State = g.state
	before := d.rest
	g.namespace = d.text()
	d.text()
	d.text()
	d.text()
	g.identity = before[:len(before)-len(d.rest)]
	switch {
	case g.state >= admission.States:
		d.fail()
	case g.state != admission.StateNone:
		g.response = d.front(&r)
	default:
		for range d.bounded(endedAttemptsMax) {
			d.attempt(&last[0].ID)
			last[0].EndedAt = d.time()
			r.Ended = last[:]
		}
		if r.Ended == nil {
			d.fail()
		}
	}
	if d.bad {
		return glimpse{}, errRecordEncoding
	}
	g.alarm = r.Alarm()
	return g, nil
}
