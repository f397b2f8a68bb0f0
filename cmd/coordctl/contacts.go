package main

import (
	"context"
	"net"
	"sync"
)

// contacts is what has come of connecting to each node, the last time: what gRPC makes of it is not
// for people. Every command has its words from here, so that all of them say the same of a node.
type contacts struct {
	through dialer // nil: by the network of this machine

	mu     sync.Mutex
	nodes  map[string]contact
	last   string // the node that was connected to last
	failed string // the node with which that came to nothing last; "": none, or it came to something since
}

// dialer connects to the port of an address.
type dialer func(ctx context.Context, address string) (net.Conn, error)

// overNetwork is the dialer of the network that this machine is on.
func overNetwork(ctx context.Context, address string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "tcp", address)
}

// contact is what has come of connecting to one node.
type contact struct {
	dialed   bool  // its port was reached
	undialed error // why its port was not
	unspoken error // why TLS was not spoken with it, unless it was since
}

// why is why it was not connected to; nil: it was, as far as is known on this side.
func (c contact) why() error {
	if c.undialed != nil {
		return c.undialed
	}
	return c.unspoken
}

// dial connects to a node's port.
func (c *contacts) dial(ctx context.Context, address string) (net.Conn, error) {
	through := c.through
	if through == nil {
		through = overNetwork
	}
	opened, err := through(ctx, address)
	c.note(address, func(node *contact) { node.dialed, node.undialed = err == nil, err })
	if err != nil {
		return nil, err
	}
	return opened, nil
}

// spoken keeps in mind why TLS was not spoken with a node; nil: it was. A port that is reached again
// says nothing of that.
func (c *contacts) spoken(address string, err error) {
	c.note(address, func(node *contact) { node.unspoken = err })
}

func (c *contacts) note(address string, change func(*contact)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.nodes == nil {
		c.nodes = make(map[string]contact)
	}
	node := c.nodes[address]
	change(&node)
	c.nodes[address], c.last = node, address
	switch {
	case node.why() != nil:
		c.failed = address
	case c.failed == address:
		c.failed = ""
	}
}

// of is what has come of connecting to a node.
func (c *contacts) of(address string) contact {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[address]
}

// any reports whether a node was connected to at all.
func (c *contacts) any() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range c.nodes {
		if node.dialed {
			return true
		}
	}
	return false
}

// latest is the node of which there is something to say where all are asked: one that could not be
// connected to before one that was; "": none was tried.
func (c *contacts) latest() (address string, failed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed != "" {
		return c.failed, true
	}
	return c.last, false
}

// unconnected says why a node has not answered that was not asked, for it was not connected to.
func (c *control) unconnected(address string) string {
	return unconnectedInWords(address, &c.security, c.contacts.of(address))
}

// unconnectedInWords is [control.unconnected] for what is known of the node.
func unconnectedInWords(address string, with *security, known contact) string {
	switch why := known.why(); {
	case why != nil:
		return "cannot connect to " + address + ": " + rootCause(why)
	case with.shows():
		return address + " does not answer as a coordinator: it hangs, is something else, or " + refusesOwn
	case with.encrypted():
		return address + " does not answer as a coordinator: it hangs, is something else, or " + wantsAsWithAnyOne
	}
	return address + " does not answer as a coordinator: it hangs, is something else, or speaks TLS, as with --" + tlsCAFlag
}
