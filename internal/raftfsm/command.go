package raftfsm

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	raftlogv1 "github.com/atmostonce/coordinator/gen/coordinator/raftlog/v1"
	"github.com/atmostonce/coordinator/internal/admission"
)

// commandBytesFixed bounds what a command's encoding takes beside its variable
// parts: tags, lengths and numbers. A Reserve of the largest numbers takes the most.
const commandBytesFixed = 128

// CommandBytes returns at least the number of bytes that the command takes in an
// encoded entry, and at most 128 more, so that a batch can be bounded before it is
// encoded. An entry without commands takes at most 64.
func CommandBytes(command admission.Command) int {
	id := command.On()
	size := commandBytesFixed + len(id.Namespace) + len(id.Principal) + len(id.Operation) + len(id.Key)
	switch c := command.(type) {
	case admission.Reserve:
		size += len(c.Fingerprint) + len(c.Owner)
	case admission.Commit:
		size += len(c.Response.Stored)
	case admission.Release:
		size += len(c.Reason)
	case admission.Resolve:
		size += len(c.Response.Stored) + len(c.Note)
	}
	return size
}

func encodeCommand(command admission.Command) (*raftlogv1.Command, error) {
	switch c := command.(type) {
	case admission.Reserve:
		lapse, err := encodeOnLapse(c.OnLapse)
		if err != nil {
			return nil, err
		}
		return &raftlogv1.Command{Kind: &raftlogv1.Command_Reserve{Reserve: &raftlogv1.Reserve{
			Identity:      encodeIdentity(c.Identity),
			Attempt:       c.Attempt[:],
			Fingerprint:   c.Fingerprint,
			PendingTtlNs:  int64(c.PendingTTL),
			RetentionNs:   int64(c.Retention),
			OnLapse:       lapse,
			Owner:         c.Owner,
			WantedUntilNs: int64(c.WantedUntil),
			RecordsMax:    c.RecordsMax,
			StorageFull:   c.StorageFull,
		}}}, nil
	case admission.Commit:
		return &raftlogv1.Command{Kind: &raftlogv1.Command_Commit{Commit: &raftlogv1.Commit{
			Identity:    encodeIdentity(c.Identity),
			Token:       encodeToken(c.Token),
			Response:    encodeResponse(c.Response),
			RetentionNs: int64(c.Retention),
		}}}, nil
	case admission.Release:
		return &raftlogv1.Command{Kind: &raftlogv1.Command_Release{Release: &raftlogv1.Release{
			Identity: encodeIdentity(c.Identity),
			Token:    encodeToken(c.Token),
			Reason:   c.Reason,
		}}}, nil
	case admission.Extend:
		return &raftlogv1.Command{Kind: &raftlogv1.Command_Extend{Extend: &raftlogv1.Extend{
			Identity:     encodeIdentity(c.Identity),
			Token:        encodeToken(c.Token),
			PendingTtlNs: int64(c.PendingTTL),
			SpanNs:       int64(c.Span),
		}}}, nil
	case admission.Resolve:
		return &raftlogv1.Command{Kind: &raftlogv1.Command_Resolve{Resolve: &raftlogv1.Resolve{
			Identity: encodeIdentity(c.Identity),
			Revision: c.Revision,
			Applied:  c.Applied,
			Response: encodeResponse(c.Response),
			Note:     c.Note,
		}}}, nil
	case admission.Purge:
		return &raftlogv1.Command{Kind: &raftlogv1.Command_Purge{Purge: &raftlogv1.Purge{
			Identity: encodeIdentity(c.Identity),
			Revision: c.Revision,
			Fence:    c.Fence,
			Force:    c.Force,
		}}}, nil
	default:
		return nil, fmt.Errorf("%w: a command of type %T", ErrEntry, command)
	}
}

func decodeCommand(encoded *raftlogv1.Command) (admission.Command, error) {
	if err := known(encoded); err != nil {
		return nil, err
	}
	switch kind := encoded.Kind.(type) {
	case *raftlogv1.Command_Reserve:
		return decodeReserve(kind.Reserve)
	case *raftlogv1.Command_Commit:
		d := decoder{}
		c := admission.Commit{
			Identity:  d.identity(kind.Commit.Identity),
			Token:     d.token(kind.Commit.Token),
			Response:  d.response(kind.Commit.Response),
			Retention: time.Duration(kind.Commit.RetentionNs),
		}
		return c, d.end(kind.Commit)
	case *raftlogv1.Command_Release:
		d := decoder{}
		c := admission.Release{
			Identity: d.identity(kind.Release.Identity),
			Token:    d.token(kind.Release.Token),
			Reason:   kind.Release.Reason,
		}
		return c, d.end(kind.Release)
	case *raftlogv1.Command_Extend:
		d := decoder{}
		c := admission.Extend{
			Identity:   d.identity(kind.Extend.Identity),
			Token:      d.token(kind.Extend.Token),
			PendingTTL: time.Duration(kind.Extend.PendingTtlNs),
			Span:       time.Duration(kind.Extend.SpanNs),
		}
		return c, d.end(kind.Extend)
	case *raftlogv1.Command_Resolve:
		d := decoder{}
		c := admission.Resolve{
			Identity: d.identity(kind.Resolve.Identity),
			Revision: kind.Resolve.Revision,
			Applied:  kind.Resolve.Applied,
			Response: d.response(kind.Resolve.Response),
			Note:     kind.Resolve.Note,
		}
		return c, d.end(kind.Resolve)
	case *raftlogv1.Command_Purge:
		d := decoder{}
		c := admission.Purge{
			Identity: d.identity(kind.Purge.Identity),
			Revision: kind.Purge.Revision,
			Fence:    kind.Purge.Fence,
			Force:    kind.Purge.Force,
		}
		return c, d.end(kind.Purge)
	default:
		return nil, fmt.Errorf("%w: a command without a kind", ErrEntry)
	}
}

func decodeReserve(m *raftlogv1.Reserve) (admission.Command, error) {
	d := decoder{}
	c := admission.Reserve{
		Identity:    d.identity(m.Identity),
		Attempt:     d.attempt(m.Attempt),
		Fingerprint: optional(m.Fingerprint),
		PendingTTL:  time.Duration(m.PendingTtlNs),
		Retention:   time.Duration(m.RetentionNs),
		OnLapse:     d.onLapse(m.OnLapse),
		Owner:       m.Owner,
		WantedUntil: admission.Time(m.WantedUntilNs),
		RecordsMax:  m.RecordsMax,
		StorageFull: m.StorageFull,
	}
	return c, d.end(m)
}

func encodeIdentity(id admission.Identity) *raftlogv1.Identity {
	return &raftlogv1.Identity{
		Namespace: id.Namespace, Principal: id.Principal, Operation: id.Operation, Key: id.Key,
	}
}

func encodeToken(token admission.Token) *raftlogv1.Token {
	return &raftlogv1.Token{Fence: token.Fence, Attempt: token.Attempt[:]}
}

// encodeResponse leaves out a response that is none, such as that of a Resolve as
// not applied.
func encodeResponse(response admission.Response) *raftlogv1.Response {
	if response.Hash == [32]byte{} && response.Bytes == 0 && len(response.Stored) == 0 {
		return nil
	}
	return &raftlogv1.Response{Hash: response.Hash[:], SizeBytes: response.Bytes, Stored: response.Stored}
}

func encodeOnLapse(onLapse admission.OnLapse) (raftlogv1.OnLapse, error) {
	switch onLapse {
	case admission.Reopen:
		return raftlogv1.OnLapse_ON_LAPSE_REOPEN, nil
	case admission.Hold:
		return raftlogv1.OnLapse_ON_LAPSE_HOLD, nil
	default:
		return 0, fmt.Errorf("%w: on_lapse %d", ErrEntry, onLapse)
	}
}

// decoder keeps the first thing that is wrong with a command.
type decoder struct{ err error }

func (d *decoder) fail(format string, arguments ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: "+format, append([]any{ErrEntry}, arguments...)...)
	}
}

// end returns what was wrong with the command, whose own message is m.
func (d *decoder) end(m proto.Message) error {
	if d.err == nil {
		d.err = known(m)
	}
	return d.err
}

func (d *decoder) identity(m *raftlogv1.Identity) admission.Identity {
	if m == nil {
		d.fail("a command without an identity")
		return admission.Identity{}
	}
	if err := known(m); err != nil && d.err == nil {
		d.err = err
	}
	return admission.Identity{Namespace: m.Namespace, Principal: m.Principal, Operation: m.Operation, Key: m.Key}
}

func (d *decoder) attempt(src []byte) (id admission.AttemptID) {
	if len(src) != len(id) {
		d.fail("an attempt id of %d bytes", len(src))
	}
	copy(id[:], src)
	return id
}

func (d *decoder) token(m *raftlogv1.Token) admission.Token {
	if m == nil {
		d.fail("a command without a token")
		return admission.Token{}
	}
	if err := known(m); err != nil && d.err == nil {
		d.err = err
	}
	return admission.Token{Fence: m.Fence, Attempt: d.attempt(m.Attempt)}
}

func (d *decoder) response(m *raftlogv1.Response) admission.Response {
	var response admission.Response
	if m == nil {
		return response
	}
	if err := known(m); err != nil && d.err == nil {
		d.err = err
	}
	if len(m.Hash) != len(response.Hash) {
		d.fail("a response hash of %d bytes", len(m.Hash))
	}
	copy(response.Hash[:], m.Hash)
	response.Bytes = m.SizeBytes
	response.Stored = optional(m.Stored)
	return response
}

func (d *decoder) onLapse(m raftlogv1.OnLapse) admission.OnLapse {
	switch m {
	case raftlogv1.OnLapse_ON_LAPSE_REOPEN:
		return admission.Reopen
	case raftlogv1.OnLapse_ON_LAPSE_HOLD:
		return admission.Hold
	default:
		d.fail("on_lapse %d", m)
		return admission.Hold
	}
}

// optional makes what is empty absent.
func optional(src []byte) []byte {
	if len(src) == 0 {
		return nil
	}
	return src
}

// known refuses a message with fields that this program does not know: they mean
// something to whoever wrote them.
func known(m proto.Message) error {
	reflected := m.ProtoReflect()
	if len(reflected.GetUnknown()) == 0 {
		return nil
	}
	return fmt.Errorf("%w: unknown fields in a message %s", ErrEntry, reflected.Descriptor().Name())
}
