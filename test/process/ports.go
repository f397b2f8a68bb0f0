package process

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
)

// ports gives out loopback addresses that nobody listens on. They are taken from below
// the range that systems draw the ports of outgoing connections from: a port there
// could be lost to any connection while its node is down.
type ports struct {
	mu    sync.Mutex
	given map[int]bool
}

const (
	portMin = 12000
	portMax = 32000
)

func (p *ports) take() (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range 1000 {
		port := portMin + rand.IntN(portMax-portMin) //nolint:gosec // which port is no secret
		if p.given[port] {
			continue
		}
		address := fmt.Sprintf("127.0.0.1:%d", port)
		listener, err := net.Listen("tcp", address)
		if err != nil {
			continue
		}
		if err := listener.Close(); err != nil {
			return "", err
		}
		p.given[port] = true
		return address, nil
	}
	return "", fmt.Errorf("no free port between %d and %d", portMin, portMax)
}
