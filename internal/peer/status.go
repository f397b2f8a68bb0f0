package peer

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/hashicorp/raft"
)

// Status is the receiver's answer to a header.
type Status uint8

const (
	// StatusOK means that the connection is what the header says from here on.
	StatusOK Status = 0
	// StatusWrongCluster means that the receiver belongs to another cluster, or to
	// none yet.
	StatusWrongCluster Status = 1
	// StatusWrongTarget means that the receiver is another server than was expected
	// at this address.
	StatusWrongTarget Status = 2
	// StatusNotServed means that the receiver is the right one, and does not have
	// this shard open or takes no calls now: it is starting or stopping.
	StatusNotServed Status = 3
	// StatusBadHeader means that the header could not be read.
	StatusBadHeader Status = 4
	// StatusBusy means that the receiver has as many connections as it may have.
	StatusBusy Status = 5
	// StatusSuperseded means that another process runs, or ran later, under the
	// identity of the one that dialed, which must end.
	StatusSuperseded Status = 6
)

// String names the status for logs.
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "ok"
	case StatusWrongCluster:
		return "wrong cluster"
	case StatusWrongTarget:
		return "wrong target"
	case StatusNotServed:
		return "not served"
	case StatusBadHeader:
		return "bad header"
	case StatusBusy:
		return "busy"
	case StatusSuperseded:
		return "superseded"
	}
	return fmt.Sprintf("status(%d)", uint8(s))
}

// RefusedError is what a dialer gets that reached a coordinator which did not take the
// connection.
type RefusedError struct {
	Address string        // host:port that was dialed
	Target  raft.ServerID // who was expected there
	Status  Status
	Reason  string // the receiver's words: who it is
}

// Error says who refused what, and why.
func (e *RefusedError) Error() string {
	target := string(e.Target)
	if target == "" {
		target = "a coordinator"
	}
	return fmt.Sprintf("peer %s at %s refused the connection (%s): %s", target, e.Address, e.Status, e.Reason)
}

const reasonBytesMax = 512

// appendOK encodes the answer to a connection that is taken: one byte and the
// receiver's life.
func appendOK(b []byte, life Life) []byte { return life.append(append(b, byte(StatusOK))) }

// appendRefusal encodes every other answer: one byte, a length of two bytes and the
// reason.
func appendRefusal(b []byte, status Status, reason string) []byte {
	b = append(b, byte(status))
	if len(reason) > reasonBytesMax {
		reason = reason[:reasonBytesMax]
	}
	b = binary.BigEndian.AppendUint16(b, uint16(len(reason)))
	return append(b, reason...)
}

// answer is what a dialer reads: the receiver's life if the status is OK, otherwise
// the reason.
type answer struct {
	status Status
	life   Life
	reason string
}

// readAnswer is the inverse of appendOK and appendRefusal. It reads not a byte beyond
// the answer.
func readAnswer(r io.Reader) (answer, error) {
	var first [1]byte
	if _, err := io.ReadFull(r, first[:]); err != nil {
		return answer{}, err
	}
	status := Status(first[0])
	if status == StatusOK {
		var encoded [lifeBytes]byte
		if _, err := io.ReadFull(r, encoded[:]); err != nil {
			return answer{}, err
		}
		life := readLife(encoded[:])
		return answer{status: status, life: life}, life.check()
	}
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return answer{}, err
	}
	length := int(binary.BigEndian.Uint16(size[:]))
	if length > reasonBytesMax {
		return answer{}, fmt.Errorf("peer: reason of %d bytes", length)
	}
	reason := make([]byte, length)
	if _, err := io.ReadFull(r, reason); err != nil {
		return answer{}, err
	}
	return answer{status: status, reason: string(reason)}, nil
}
