package actor

import "sync"

// mailbox holds the calls that are to be decided. Any goroutine puts, the loop takes.
//
// A Reserve brings new work. Every other call ends or prolongs what has been granted, or
// looks at it: refusing it sheds no load, it wastes what has been done already, and where
// a Commit is not taken before its window ends, the work is done once more. So the last
// eighth of the mailbox, of its places and of its bytes, is not for Reserves: they are
// refused first.
//
// An eighth of the default is 512 places and 8 MiB. An entry takes 1024 calls, and where a
// storm of Reserves fills all the other places about half of them are Reserves that are
// granted, each of which comes back as one Commit or Release: as many as there are places
// kept. The bytes are those of eight responses of the largest size.
type mailbox struct {
	signal chan struct{} // capacity 1: something was put, or a caller has gone

	mu       sync.Mutex
	refuse   error // what put returns, or nil
	calls    []*call
	bytes    int64
	deserted bool // some caller has gone

	forReserves, forOthers FullError // what is full, with how much may be in the mailbox; a single call may be larger
}

// keptShare is the part of the mailbox that is kept for calls that are no Reserve: one in
// keptShare, and at least one place where there are two.
const keptShare = 8

func newMailbox(callsMax int, bytesMax int64) *mailbox {
	return &mailbox{
		signal: make(chan struct{}, 1), refuse: ErrNoLeader,
		forReserves: FullError{ErrMailboxFull, max(1, (keptShare-1)*callsMax/keptShare), bytesMax - bytesMax/keptShare},
		forOthers:   FullError{ErrMailboxFull, callsMax, bytesMax},
	}
}

// put adds a call, or returns why not.
func (m *mailbox) put(c *call) error {
	full := &m.forOthers
	if c.reserves() {
		full = &m.forReserves
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch n := len(m.calls); {
	case m.refuse != nil:
		return m.refuse
	case n >= full.Most, n > 0 && m.bytes+c.bytes > full.Bytes:
		return full
	}
	m.calls = append(m.calls, c)
	m.bytes += c.bytes
	m.wake()
	return nil
}

// open lets calls in; close keeps them out with the given error.
func (m *mailbox) open() { m.close(nil) }

func (m *mailbox) close(refuse error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.refuse = refuse
}

// desert notes that some call's caller has gone.
func (m *mailbox) desert() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deserted = true
	m.wake()
}

// wasDeserted reports, once, whether desert was called.
func (m *mailbox) wasDeserted() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	was := m.deserted
	m.deserted = false
	return was
}

// take removes and returns up to callsMax calls that add up to bytesMax with the bytes
// that there are already; where these are 0, it may be a single larger one. It reports whether
// the next call, if there is one, would fit. Calls whose callers have gone are dropped on
// the way.
func (m *mailbox) take(callsMax int, bytes, bytesMax int64) (taken []*call, fits bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fits = true
	rest := m.calls
	for len(rest) > 0 && len(taken) < callsMax {
		c := rest[0]
		if !c.gone.Load() {
			if bytes > 0 && bytes+c.bytes > bytesMax {
				fits = false
				break
			}
			taken = append(taken, c)
			bytes += c.bytes
		}
		m.bytes -= c.bytes
		rest[0] = nil
		rest = rest[1:]
	}
	if len(rest) == 0 {
		rest = m.calls[:0] // reuse the array from its beginning
	}
	m.calls = rest
	return taken, fits
}

// empty removes and returns all calls.
func (m *mailbox) empty() []*call {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls, m.bytes = nil, 0
	return calls
}

func (m *mailbox) depth() (calls int, bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.calls), m.bytes
}

func (m *mailbox) wake() {
	select {
	case m.signal <- struct{}{}:
	default:
	}
}
