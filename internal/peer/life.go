package peer

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// Life is one process of a server: two processes of one server have two. See the
// package comment.
type Life struct {
	// Starts is how often the server's data directory had been started when this process
	// was, itself included: 1 or more. It is on disk before the process uses a port.
	Starts uint64
	// Boot is random, and tells apart processes that were started equally often: a
	// data directory and its copy.
	Boot BootID
}

// BootID is what a process draws when it starts.
type BootID [16]byte

// NewLife returns the life of this process.
func NewLife(starts uint64) Life {
	life := Life{Starts: starts}
	// Since Go 1.24 this cannot fail: a system without randomness ends the program.
	_, _ = rand.Read(life.Boot[:])
	return life
}

// String names the life for logs.
func (l Life) String() string {
	return fmt.Sprintf("start %d, boot %s", l.Starts, hex.EncodeToString(l.Boot[:]))
}

const lifeBytes = 8 + len(BootID{})

// append encodes a life: its starts as eight bytes, and its boot id.
func (l Life) append(b []byte) []byte {
	return append(binary.BigEndian.AppendUint64(b, l.Starts), l.Boot[:]...)
}

// readLife is the inverse of append, of lifeBytes bytes.
func readLife(b []byte) Life {
	return Life{Starts: binary.BigEndian.Uint64(b), Boot: BootID(b[8:lifeBytes])}
}

// check reports what cannot be a life.
func (l Life) check() error {
	if l.Starts == 0 || l.Boot == (BootID{}) {
		return fmt.Errorf("peer: a process of %s", l)
	}
	return nil
}

// process is one process of one server: who is at the far end of a connection.
type process struct {
	server raft.ServerID
	life   Life
}

// livesMax bounds of how many servers the newest life is remembered. Members are
// incarnationsMax at most; the rest is for those that were replaced, and for strangers
// that know the cluster's id.
const livesMax = 2 * incarnationsMax

// lives remembers of each server the newest life that was met, this server's own
// included.
type lives struct {
	self process

	mu     sync.Mutex
	newest map[raft.ServerID]*met
	clock  uint64 // counts meetings
}

// met is the newest life of a server.
type met struct {
	life Life
	at   uint64 // the meeting, of the last time
}

func newLives(self process) *lives { return &lives{self: self, newest: make(map[raft.ServerID]*met)} }

// meeting is what comes of meeting a process.
type meeting int

const (
	metAgain meeting = iota // it is the newest of its server
	metNewer                // it is, and was not known to be
	metStale                // another one is newer, or as new: this one must not count
)

// meet notes a process, and returns the newest life of its server.
func (l *lives) meet(p process) (meeting, Life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.server == l.self.server {
		return compare(p.life, l.self.life), l.self.life
	}
	l.clock++
	known := l.newest[p.server]
	if known == nil {
		l.makeRoom()
		l.newest[p.server] = &met{life: p.life, at: l.clock}
		return metNewer, p.life
	}
	known.at = l.clock
	result := compare(p.life, known.life)
	if result == metNewer {
		known.life = p.life
	}
	return result, known.life
}

// compare says what a life is beside the newest one that is known.
func compare(life, newest Life) meeting {
	switch by := cmp.Compare(life.Starts, newest.Starts); {
	case by > 0:
		return metNewer
	case by < 0 || life.Boot != newest.Boot:
		return metStale
	}
	return metAgain
}

// makeRoom forgets the server that was not met for longest, if need be.
func (l *lives) makeRoom() {
	if len(l.newest) < livesMax {
		return
	}
	var oldest raft.ServerID
	at := l.clock
	for server, known := range l.newest {
		if known.at < at {
			oldest, at = server, known.at
		}
	}
	delete(l.newest, oldest)
}

// check returns a [staleError] for a process that is known not to be the newest of its
// server.
func (l *lives) check(p process) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.newest[p.server]; known != nil && known.life != p.life {
		return &staleError{refused: p, newest: known.life}
	}
	return nil
}

// staleError reports a process that is not the newest of its server, and must not count.
type staleError struct {
	refused process
	newest  Life
}

// Error is for whoever is not that process.
func (e *staleError) Error() string {
	return "another process runs, or ran later, under the same identity: " + e.reason()
}

// reason is for that process.
func (e *staleError) reason() string {
	return fmt.Sprintf("%s is known here as %s, and this is %s", e.refused.server, e.newest, e.refused.life)
}

// SupersededError reports that another process runs, or ran later, under this
// process's identity.
type SupersededError struct {
	By string // who said so, and what
}

// Error says it in one line.
func (e *SupersededError) Error() string {
	return fmt.Sprintf("another process runs, or ran later, under this node's identity: %s. What this one has stored must not count. "+
		"A data directory is never copied to be started (docs/cluster.md)", e.By)
}

// meet notes the process at the far end of a connection in this cluster. It returns a
// [staleError] where that must not count. Where it is newer than another of its server,
// the connections with the other are closed; and where that other is this process, this
// process ends.
func (p *Port) meet(far process, remote string) error {
	result, newest := p.lives.meet(far)
	switch {
	case result == metStale:
		p.twins.log(p.cfg.Logger, "two processes under one identity; refused the older one", "server", string(far.server),
			"refused", far.life.String(), "remote", remote, "newest", newest.String())
		return &staleError{refused: far, newest: newest}
	case result == metNewer && far.server == p.cfg.Self:
		p.superseded(fmt.Sprintf("%s is there as %s, and this is %s", remote, far.life, newest))
		return errors.New("this process is the older one of two under one identity, and ends")
	case result == metNewer:
		p.closeOthers(far)
	}
	return nil
}

// superseded ends this process.
func (p *Port) superseded(by string) {
	err := &SupersededError{By: by}
	p.twins.log(p.cfg.Logger, "two processes under one identity; this one ends", "server", string(p.cfg.Self), "reason", by)
	p.cfg.Superseded(err)
}

// closeOthers closes the connections with every other process of a server.
func (p *Port) closeOthers(newest process) {
	p.mu.Lock()
	inlets := []*inlet{p.calls.inlet, p.dialed}
	for _, layer := range p.layers {
		inlets = append(inlets, layer.inlet)
	}
	p.mu.Unlock()
	closed := 0
	for _, i := range inlets {
		closed += i.closeWhere(func(c *connection) bool { return c.far.server == newest.server && c.far.life != newest.life })
	}
	if closed > 0 {
		p.cfg.Logger.Info("a server runs anew; closed the connections with what it was", "server", string(newest.server),
			"now", newest.life.String(), "closed", closed)
	}
}
