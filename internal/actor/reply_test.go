package actor

import (
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/admission"
)

// An owner may act until the moment it sent its call plus Waited and Remaining: together
// they never reach past the deadline, also where that has come before the answer.
func TestWaitedAndRemainingEndAtTheDeadline(t *testing.T) {
	base := time.Now()
	l := &leadership{noted: 1000, base: base}
	received := base.Add(10 * time.Second)
	c := newCall(Request{Received: received}, 0)
	deadline := l.live(received.Add(time.Second))
	for _, after := range []time.Duration{0, 500 * time.Millisecond, time.Second, 90 * time.Second} {
		reply := l.reply(c, admission.Answer{Deadline: deadline}, received.Add(after))
		if reply.Remaining < 0 || reply.Waited < 0 || reply.Waited+reply.Remaining != time.Second {
			t.Errorf("after %v: waited %v and remaining %v", after, reply.Waited, reply.Remaining)
		}
	}
	reply := l.reply(c, admission.Answer{Deadline: admission.Never}, received.Add(time.Minute))
	if reply.Remaining != NoEnd || reply.Waited != time.Minute {
		t.Errorf("without an end: %+v", reply)
	}
	if reply = l.reply(c, admission.Answer{}, received.Add(time.Minute)); reply.Remaining != 0 || reply.Waited != 0 {
		t.Errorf("long over: %+v", reply)
	}
}
