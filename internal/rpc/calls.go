package rpc

import (
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/histogram"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Calls counts the calls of one server by method and outcome, those of sessions as well.
// All methods may be called by several goroutines.
type Calls struct {
	methods  map[string]*method
	session  *method // the streams
	sessions atomic.Int64
	underWay atomic.Int64              // [Bounded] counts them
	looking  atomic.Bool               // it will look again who takes places for nothing
	fullSaid atomic.Pointer[time.Time] // when it said last that calls are refused; nil: never
	crowd    crowd
}

// method counts the calls of one method.
type method struct {
	name     string
	failures map[reason.Reason]int // their places in outcomes
	outcomes []atomic.Uint64       // in the order of Outcomes
	took     histogram.Durations
}

// The outcomes of a call that did not fail. All but Reserve have one.
const (
	outcomeDone = iota
	outcomeGranted
	outcomeCommitted
	outcomePending
	outcomeInDoubt
	successes
)

var successNames = [successes]string{"done", "granted", "committed", "pending", "in_doubt"}

// outcomeOther is the name of a failure whose reason is not in the table.
const outcomeOther = "OTHER"

// Outcomes names what may become of a call: how it succeeds, in lower case, then the
// reasons of the error table, and at last "OTHER".
func Outcomes() []string {
	names := slices.Clone(successNames[:])
	for _, row := range reason.Table() {
		names = append(names, string(row.Reason))
	}
	return append(names, outcomeOther)
}

// services are those of this package.
var services = []grpc.ServiceDesc{coordinatorv1.CoordinatorService_ServiceDesc, coordinatorv1.AdminService_ServiceDesc}

// NewCalls returns one that has counted nothing.
func NewCalls() *Calls {
	c := &Calls{methods: make(map[string]*method)}
	failures := make(map[reason.Reason]int)
	for i, row := range reason.Table() {
		failures[row.Reason] = successes + i
	}
	add := func(name string) *method {
		m := &method{name: name, failures: failures, outcomes: make([]atomic.Uint64, successes+len(failures)+1)}
		c.methods[name] = m
		return m
	}
	for _, service := range services {
		for _, described := range service.Methods {
			add(described.MethodName)
		}
	}
	c.session = add("Session")
	return c
}

// ended counts a call that has come to its end: at a message, or at an error. The time is
// not counted of a Reserve that asked to wait, which takes as long as it was told to.
func (m *method) ended(began time.Time, request, answer any, err error) {
	m.count(answer, err)
	if reserve, ok := request.(*coordinatorv1.ReserveRequest); ok && reserve.GetWait() != nil {
		return
	}
	m.took.Observe(time.Since(began))
}

// count counts the outcome of a call.
func (m *method) count(answer any, err error) {
	outcome := len(m.outcomes) - 1 // OTHER
	if err == nil {
		outcome = successOf(answer)
	} else if failed, known := m.failures[reason.Of(err).Reason]; known {
		outcome = failed
	}
	m.outcomes[outcome].Add(1)
}

func successOf(answer any) int {
	reserved, ok := answer.(*coordinatorv1.ReserveResponse)
	if !ok {
		return outcomeDone
	}
	switch reserved.GetOutcome().(type) {
	case *coordinatorv1.ReserveResponse_Granted:
		return outcomeGranted
	case *coordinatorv1.ReserveResponse_Committed:
		return outcomeCommitted
	case *coordinatorv1.ReserveResponse_Pending:
		return outcomePending
	case *coordinatorv1.ReserveResponse_InDoubt:
		return outcomeInDoubt
	}
	return outcomeDone
}

// ofSession counts a call of a session under its method. One that names no method is
// counted as the session's own.
func (c *Calls) ofSession(call *coordinatorv1.SessionCall, answer *coordinatorv1.SessionAnswer, began time.Time, err error) {
	switch called := call.GetCall().(type) {
	case *coordinatorv1.SessionCall_Reserve:
		c.methods["Reserve"].ended(began, called.Reserve, answer.GetReserve(), err)
	case *coordinatorv1.SessionCall_Commit:
		c.methods["Commit"].ended(began, called.Commit, answer.GetCommit(), err)
	case *coordinatorv1.SessionCall_Release:
		c.methods["Release"].ended(began, called.Release, answer.GetRelease(), err)
	case *coordinatorv1.SessionCall_Extend:
		c.methods["Extend"].ended(began, called.Extend, answer.GetExtend(), err)
	default:
		c.session.count(nil, err)
	}
}

// opened counts a session that begins, and returns what counts its end, of which the error
// says what it was.
func (c *Calls) opened(err *error) (ended func()) {
	c.sessions.Add(1)
	return func() {
		c.sessions.Add(-1)
		c.session.count(nil, *err)
	}
}

// UnderWay is how many calls have begun and not ended. A session is one, whatever it carries.
func (c *Calls) UnderWay() int64 { return c.underWay.Load() }

// Sessions is how many are open.
func (c *Calls) Sessions() int64 { return c.sessions.Load() }

// MethodCalls is what was counted of one method.
type MethodCalls struct {
	Method   string
	Outcomes []uint64 // in the order of [Outcomes]
	// Took is how long the calls took from request to answer, without the Reserves that
	// asked to wait. It is nil for a method whose calls are streams.
	Took *histogram.Counts
}

// Counts returns what was counted so far, by the methods' names.
func (c *Calls) Counts() []MethodCalls {
	var all []MethodCalls
	for _, m := range c.methods {
		counted := MethodCalls{Method: m.name, Outcomes: make([]uint64, len(m.outcomes))}
		for i := range m.outcomes {
			counted.Outcomes[i] = m.outcomes[i].Load()
		}
		if m != c.session {
			took := m.took.Counts()
			counted.Took = &took
		}
		all = append(all, counted)
	}
	slices.SortFunc(all, func(a, b MethodCalls) int { return strings.Compare(a.Method, b.Method) })
	return all
}
