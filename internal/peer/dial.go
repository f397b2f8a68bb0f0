package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hashicorp/raft"
)

// Hello asks the node at an address who it is, and tells it who asks. It needs no
// cluster. The whole exchange takes HandshakeTimeout at most.
func (p *Port) Hello(ctx context.Context, hostPort string, say HelloMessage) (HelloMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	conn, err := p.connect(ctx, Header{Kind: KindHello}, hostPort)
	if err != nil {
		return HelloMessage{}, err
	}
	tracked, err := p.dialed.adopt(conn, false)
	if err != nil {
		_ = conn.Close()
		return HelloMessage{}, err
	}
	defer tracked.Close() //nolint:errcheck // the answer has been read, or its error reported
	stop := cutWhenDone(ctx, conn)
	defer stop()
	if err := writeHello(conn, say); err != nil {
		return HelloMessage{}, fmt.Errorf("say hello to %s: %w", hostPort, cause(ctx, err))
	}
	answer, err := readHello(conn)
	if err != nil {
		return HelloMessage{}, fmt.Errorf("hello from %s: %w", hostPort, cause(ctx, err))
	}
	return answer, nil
}

// CallDial connects to the internal gRPC server of another node, for
// grpc.WithContextDialer. The address is a host:port or one as [Address] returns.
func (p *Port) CallDial(ctx context.Context, target raft.ServerID, address string) (net.Conn, error) {
	conn, err := p.connect(ctx, Header{Kind: KindCall, Target: target}, p.locate(target, HostPort(raft.ServerAddress(address))))
	if err != nil {
		return nil, err
	}
	tracked, err := p.dialed.adopt(conn, false)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return tracked, nil
}

// Addresses resolves server ids for raft.NetworkTransport: it answers for the servers
// that [Config].AddressOf knows, and fails for others, upon which raft uses the
// address in its configuration.
func (p *Port) Addresses() raft.ServerAddressProvider { return addresses{p} }

type addresses struct{ port *Port }

// ServerAddr implements raft.ServerAddressProvider.
func (a addresses) ServerAddr(id raft.ServerID) (raft.ServerAddress, error) {
	hostPort := a.port.locate(id, "")
	if hostPort == "" && id != a.port.cfg.Self {
		return "", fmt.Errorf("peer: the address of %s is not known", id)
	}
	return Address(id, hostPort), nil
}

// locate returns where a server is now, and otherwise where it was said to be.
func (p *Port) locate(id raft.ServerID, otherwise string) string {
	if id == p.cfg.Self {
		return p.cfg.Advertise
	}
	if p.cfg.AddressOf != nil {
		if hostPort, ok := p.cfg.AddressOf(id); ok && hostPort != "" {
			return hostPort
		}
	}
	return otherwise
}

// connect dials, sends the header and waits for the answer. The connection it returns
// has no deadline, and belongs to the caller.
func (p *Port) connect(ctx context.Context, h Header, hostPort string) (net.Conn, error) {
	if hostPort == "" {
		return nil, errors.New("peer: no address to dial")
	}
	h.Sender = p.cfg.Self
	if h.Kind != KindHello {
		h.Cluster = p.Cluster()
	}
	header, err := h.Encode()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(p.ctx, cancel)
	defer stop()
	conn, err := p.cfg.Dial(ctx, hostPort)
	if err != nil {
		return nil, fmt.Errorf("peer: dial %s: %w", hostPort, err)
	}
	release := cutWhenDone(ctx, conn)
	status, reason, err := exchange(conn, header)
	release()
	if err == nil && status != StatusOK {
		err = &RefusedError{Address: hostPort, Target: h.Target, Status: status, Reason: reason}
	}
	if err == nil {
		err = cause(ctx, conn.SetDeadline(time.Time{}))
	}
	if err != nil {
		_ = conn.Close()
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			return nil, err
		}
		return nil, fmt.Errorf("peer: open %s to %s: %w", h.Kind, hostPort, cause(ctx, err))
	}
	return conn, nil
}

func exchange(conn net.Conn, header []byte) (Status, string, error) {
	if _, err := conn.Write(header); err != nil {
		return 0, "", err
	}
	return readStatus(conn)
}

// cutWhenDone makes reads and writes fail once ctx is done. The function it returns
// ends that, and does not return before a cut that has begun is over, so that a
// deadline set afterwards stays.
func cutWhenDone(ctx context.Context, conn net.Conn) (release func()) {
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	return func() {
		if !stop() {
			<-done
		}
	}
}

// cause returns the context's error where that is why something failed.
func cause(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
