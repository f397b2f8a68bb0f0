package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// Hello asks the node at an address who it is, and tells it who asks. It needs no
// cluster. The whole exchange takes HandshakeTimeout at most.
func (p *Port) Hello(ctx context.Context, hostPort string, say HelloMessage) (HelloMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	conn, life, err := p.connect(ctx, Header{Kind: KindHello}, hostPort)
	if err != nil {
		return HelloMessage{}, err
	}
	tracked, err := p.dialed.adopt(conn, process{}, false)
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
	heard, err := readHello(conn)
	if err != nil {
		return HelloMessage{}, fmt.Errorf("hello from %s: %w", hostPort, cause(ctx, err))
	}
	if heard.ClusterID != "" && heard.ClusterID == p.Cluster() {
		if err := p.meet(process{heard.Self.ID(), life}, hostPort); err != nil {
			return HelloMessage{}, fmt.Errorf("hello from %s: %w", hostPort, err)
		}
	}
	return heard, nil
}

// CallDial connects to the internal gRPC server of another node, for
// grpc.WithContextDialer. The address is a host:port or one as [Address] returns.
func (p *Port) CallDial(ctx context.Context, target raft.ServerID, address string) (net.Conn, error) {
	return p.open(ctx, p.dialed, Header{Kind: KindCall, Target: target}, p.locate(target, HostPort(raft.ServerAddress(address))))
}

// open connects to a server of this cluster, unless what answers for it is not its newest
// process.
func (p *Port) open(ctx context.Context, from *inlet, h Header, hostPort string) (net.Conn, error) {
	conn, life, err := p.connect(ctx, h, hostPort)
	if err != nil {
		return nil, err
	}
	far := process{h.Target, life}
	err = p.meet(far, hostPort)
	if err == nil {
		var tracked *connection
		if tracked, err = from.adopt(conn, far, false); err == nil {
			return tracked, nil
		}
	}
	_ = conn.Close()
	return nil, fmt.Errorf("peer: open %s to %s: %w", h.Kind, hostPort, err)
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
// has no deadline, and belongs to the caller; life is that of the process at the far end.
func (p *Port) connect(ctx context.Context, h Header, hostPort string) (_ net.Conn, life Life, err error) {
	if hostPort == "" {
		return nil, Life{}, errors.New("peer: no address to dial")
	}
	h.Sender, h.Life, h.Cluster = p.cfg.Self, p.cfg.Life, p.Cluster()
	header, err := h.Encode()
	if err != nil {
		return nil, Life{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, p.cfg.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(p.ctx, cancel)
	defer stop()
	conn, err := p.cfg.Dial(ctx, hostPort)
	if err != nil {
		if tried := (*net.OpError)(nil); errors.As(err, &tried) && tried.Op == "dial" {
			err = tried.Err // which says once more what was dialed
		}
		return nil, Life{}, fmt.Errorf("peer: dial %s: %w", hostPort, err)
	}
	release := cutWhenDone(ctx, conn)
	got, err := exchange(conn, header)
	release()
	if err == nil && got.status != StatusOK {
		err = &RefusedError{Address: hostPort, Target: h.Target, Status: got.status, Reason: got.reason}
	}
	if err == nil {
		err = cause(ctx, conn.SetDeadline(time.Time{}))
	}
	if err != nil {
		_ = conn.Close()
		if refused := (*RefusedError)(nil); errors.As(err, &refused) {
			if refused.Status == StatusSuperseded {
				p.superseded(fmt.Sprintf("%s says that %s", hostPort, refused.Reason))
			}
			return nil, Life{}, err
		}
		return nil, Life{}, fmt.Errorf("peer: open %s to %s: %w", h.Kind, hostPort, cause(ctx, err))
	}
	return conn, got.life, nil
}

func exchange(conn net.Conn, header []byte) (answer, error) {
	if _, err := conn.Write(header); err != nil {
		return answer{}, err
	}
	got, err := readAnswer(conn)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		err = fmt.Errorf("closed without an answer, as by a node that is just ending, or where only one end speaks TLS: %w", err)
	}
	return got, err
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
