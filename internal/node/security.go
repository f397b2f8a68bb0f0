package node

import (
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/atmostonce/coordinator/internal/certs"
)

// What the settings of the files are called, by part.
var (
	clientFiles = [...]string{certs.Certificate: "tls-cert", certs.Key: "tls-key", certs.Authorities: "tls-client-ca"}
	peerFiles   = [...]string{certs.Certificate: "peer-tls-cert", certs.Key: "peer-tls-key", certs.Authorities: "peer-tls-ca"}
)

// validateTLS checks which files are named together.
func (c *Config) validateTLS() error {
	switch files := c.TLS; {
	case files.Certificate == "" && files.Given():
		return wrong(clientFiles[certs.Certificate], "is missing: %s and %s are of no use without it", clientFiles[certs.Key], clientFiles[certs.Authorities])
	case files.Key == "" && files.Given():
		return wrong(clientFiles[certs.Key], "is missing: it is the key of %s", clientFiles[certs.Certificate])
	}
	for part, file := range []string{certs.Certificate: c.PeerTLS.Certificate, certs.Key: c.PeerTLS.Key, certs.Authorities: c.PeerTLS.Authorities} {
		if file == "" && c.PeerTLS.Given() {
			return wrong(peerFiles[part], "is missing: nodes show each other who they are, with all of %s", strings.Join(peerFiles[:], ", "))
		}
	}
	return nil
}

// protected says, of the port of a setting, whether other machines may reach it, and what it
// takes. A port that only shows how the node is has to be encrypted; one through which
// something can be done has to know as well that whoever comes may do so.
func (c *Config) protected(setting string) (enough bool, needs string) {
	switch setting {
	case "listen":
		return c.TLS.Authorities != "", "--tls-cert, --tls-key and --tls-client-ca"
	case "peer-listen":
		return c.PeerTLS.Given(), "--peer-tls-cert, --peer-tls-key and --peer-tls-ca"
	default:
		return c.TLS.Given(), "--tls-cert and --tls-key"
	}
}

// security is what the ports show and believe; nil is plain text.
type security struct{ clients, peers *certs.Keeper }

// openSecurity reads the files.
func openSecurity(cfg *Config) (s security, err error) {
	if s.clients, err = keeper(cfg.TLS, clientFiles[:], cfg.Logger); err != nil {
		return s, err
	}
	s.peers, err = keeper(cfg.PeerTLS, peerFiles[:], cfg.Logger)
	return s, err
}

func keeper(files certs.Files, settings []string, logger *slog.Logger) (*certs.Keeper, error) {
	if !files.Given() {
		return nil, nil
	}
	opened, err := certs.Open(files, logger)
	if file := (*certs.FileError)(nil); errors.As(err, &file) {
		return nil, wrong(settings[file.Part], "%s", file.OfSetting())
	}
	return opened, err
}

// watchCertificates looks for renewed certificates until the node stops.
func (n *Node) watchCertificates() {
	for _, keeper := range []*certs.Keeper{n.security.clients, n.security.peers} {
		if keeper != nil {
			n.work.Go(func() { keeper.Watch(n.ctx) })
		}
	}
}

// forClients is how the gRPC port for clients accepts connections.
func (s security) forClients(logger *slog.Logger) credentials.TransportCredentials {
	if s.clients == nil {
		return insecure.NewCredentials()
	}
	return &loggingCredentials{credentials.NewTLS(s.clients.Server("h2")), logger, &seldom{}}
}

// loggingCredentials says which connections came to nothing, for want of a certificate most
// likely. The server behind them does without a word.
type loggingCredentials struct {
	credentials.TransportCredentials
	logger  *slog.Logger
	refused *seldom
}

// ServerHandshake implements [credentials.TransportCredentials].
func (l *loggingCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := l.TransportCredentials.ServerHandshake(raw)
	if err == nil {
		return conn, info, nil
	}
	l.refused.say(func(times int) {
		l.logger.Warn("refused a client's connection", "remote", raw.RemoteAddr().String(), "error", err, "refused_since_last_line", times)
	})
	return nil, nil, err
}

// Clone implements [credentials.TransportCredentials].
func (l *loggingCredentials) Clone() credentials.TransportCredentials {
	return &loggingCredentials{l.TransportCredentials.Clone(), l.logger, l.refused}
}

// forLooks encrypts a port that only shows how the node is.
func (s security) forLooks(listener net.Listener) net.Listener {
	if s.clients == nil {
		return listener
	}
	return tls.NewListener(listener, s.clients.ServerForAll("http/1.1"))
}

// notAfter is when what a port shows is over; nil where it shows nothing.
func notAfter(keeper *certs.Keeper) func() time.Time {
	if keeper == nil {
		return nil
	}
	return keeper.NotAfter
}
