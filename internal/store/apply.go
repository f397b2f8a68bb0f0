package store

import (
	"errors"
	"fmt"

	"github.com/atmostonce/coordinator/internal/admission"
)

// errInvariant says that a decision does not fit the state that it is applied to.
var errInvariant = errors.New("store: broken invariant")

// Apply carries out a decision about an identity. The record before is the one of
// the view that was decided on, nil where it had none.
//
// A record without a sequence gets the next one, and what was there before is
// deleted. A response whose bytes are not given stays, as long as the record stays
// committed. The decision's record is not kept and not written to; its response's
// bytes are kept until they are durable, and must not be written to. An error is a
// broken invariant, of the state or of the caller.
func (t *Tx) Apply(decision admission.Decision, before *admission.Record) error {
	if !t.writable || t.ended {
		return ErrReadOnly
	}
	s := t.store
	if decision.Counter < s.head.counter {
		return fmt.Errorf("%w: the counter goes back from %d to %d", errInvariant, s.head.counter, decision.Counter)
	}
	var err error
	switch {
	case decision.Record != nil && decision.Deleted:
		err = fmt.Errorf("%w: a decision both to keep and to delete", errInvariant)
	case decision.Record != nil:
		err = t.put(decision.Record, before)
	case decision.Deleted && before != nil:
		err = t.remove(before)
	}
	if err != nil {
		return err
	}
	if decision.Counter != s.head.counter {
		t.changed = true
		s.head.counter = decision.Counter
	}
	return nil
}

// put stores a record in place of before.
func (t *Tx) put(r, before *admission.Record) error {
	s := t.store
	hash := t.hash(r.Identity)
	slot, err := t.slotOf(before, r.Identity, hash)
	if err != nil {
		return err
	}
	sequence := r.Sequence
	if sequence == 0 {
		sequence = s.head.lastSequence + 1
	} else if slot == 0 || sequence != before.Sequence {
		return fmt.Errorf("%w: record %d is to be changed and is not there", errInvariant, sequence)
	}
	response, err := t.response(r, before)
	if err != nil {
		return err
	}
	encoded, err := encodeRecord(r, sequence, response)
	if err != nil {
		return fmt.Errorf("%w: %w", errInvariant, err)
	}
	if slot != 0 && sequence != before.Sequence {
		if err := t.remove(before); err != nil {
			return err
		}
		slot = 0
	}

	t.changed = true
	c := change{record: encoded}
	apart := response.place == placeApart
	switch {
	case apart && len(r.Response.Stored) > 0:
		c.fate, c.response = responsePut, r.Response.Stored
	case !apart && slot != 0 && s.index.slots.at(slot).apart:
		c.fate = responseDeleted
	}
	t.gather(sequence, c)
	e := entry{
		sequence: sequence,
		hash:     hash,
		alarm:    r.Alarm(),
		checksum: valueChecksum(encoded),
		state:    r.State,
		apart:    apart,
	}
	if slot != 0 {
		s.index.replace(slot, e, r.Identity.Namespace)
		return nil
	}
	s.head.lastSequence = sequence
	s.index.add(e, r.Identity.Namespace)
	return nil
}

// response decides what is stored of the record's response: what it carries, or
// what is stored of it already.
func (t *Tx) response(r, before *admission.Record) (storedResponse, error) {
	if r.State != admission.StateCommitted {
		return storedResponse{}, nil
	}
	if len(r.Response.Stored) > 0 || before == nil || before.State != admission.StateCommitted || before.Sequence != r.Sequence {
		return newStoredResponse(r.Response.Stored), nil
	}
	_, response, err := t.decode(before.Sequence)
	return response, err
}

// remove deletes the record.
func (t *Tx) remove(before *admission.Record) error {
	slot, err := t.slotOf(before, before.Identity, t.hash(before.Identity))
	if err != nil {
		return err
	}
	t.changed = true
	c := change{}
	if t.store.index.slots.at(slot).apart {
		c.fate = responseDeleted
	}
	t.gather(before.Sequence, c)
	t.store.index.remove(slot, before.Identity.Namespace)
	return nil
}

// slotOf returns the slot of the record before, and 0 where that is nil and the
// identity has none.
func (t *Tx) slotOf(before *admission.Record, id admission.Identity, hash uint64) (uint32, error) {
	if before == nil {
		return 0, t.absent(id, hash)
	}
	if before.Identity != id {
		return 0, fmt.Errorf("%w: a decision about another identity than record %d", errInvariant, before.Sequence)
	}
	slot := t.store.index.find(hash, before.Sequence)
	if slot == 0 || t.store.index.slots.at(slot).state != before.State {
		return 0, fmt.Errorf("%w: record %d is not as it was looked at", errInvariant, before.Sequence)
	}
	return slot, nil
}

// absent returns an error where the identity has a record after all.
func (t *Tx) absent(id admission.Identity, hash uint64) error {
	x := t.store.index
	for i := x.first(hash); i != 0; i = x.after(i) {
		r, _, err := t.decode(x.slots.at(i).sequence)
		if err != nil {
			return err
		}
		if r.Identity == id {
			return fmt.Errorf("%w: record %d is there and was not looked at", errInvariant, r.Sequence)
		}
	}
	return nil
}

// gather notes a change for the next flush. A response that is put is kept as it
// is: whoever proposed it does not write to it any more.
func (t *Tx) gather(sequence uint64, c change) {
	l := t.store.gathering
	before := l.bytes
	l.put(sequence, c)
	t.store.gathered.Add(l.bytes - before)
}
