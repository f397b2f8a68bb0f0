package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// LookEvery is how often the files are looked at.
const LookEvery = 10 * time.Second

// Keeper keeps what the files of a port hold. Its methods may be called from any goroutine.
type Keeper struct {
	files  Files
	logger *slog.Logger
	kept   atomic.Pointer[kept]
}

// kept is one state of the files, and what follows from it.
type kept struct {
	*material
	contents *contents
}

// Open reads the files. Its error is a [FileError].
func Open(files Files, logger *slog.Logger) (*Keeper, error) {
	read, err := files.read()
	if err != nil {
		return nil, err
	}
	made, err := files.parse(read)
	if err != nil {
		return nil, err
	}
	k := &Keeper{files: files, logger: logger}
	k.keep(&kept{made, read})
	return k, nil
}

func (k *Keeper) keep(state *kept) {
	k.kept.Store(state)
	if !state.notAfter.IsZero() && !time.Now().Before(state.notAfter) {
		k.logger.Error("a certificate is over: nobody who looks will believe it", "file", k.files.Certificate, "not_after", state.notAfter)
	}
}

// Watch looks at the files every [LookEvery], until ctx ends.
func (k *Keeper) Watch(ctx context.Context) {
	ticker := time.NewTicker(LookEvery)
	defer ticker.Stop()
	var told error // what the log was told last, and is still so
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		changed, err := k.look()
		switch {
		case err != nil && (told == nil || err.Error() != told.Error()):
			k.logger.Error("certificates cannot be renewed: those that were read before are kept", "error", err)
		case changed:
			k.logger.Info("certificates were read again", "file", k.files.Certificate, "not_after", k.NotAfter())
		}
		told = err
	}
}

// look takes up what the files hold now.
func (k *Keeper) look() (changed bool, err error) {
	read, err := k.files.read()
	if err != nil {
		return false, err
	}
	if read.equal(k.kept.Load().contents) {
		return false, nil
	}
	made, err := k.files.parse(read)
	if err != nil {
		return false, err
	}
	k.keep(&kept{made, read})
	return true, nil
}

// NotAfter is when the first of the certificates that are shown is over; zero where none are.
func (k *Keeper) NotAfter() time.Time { return k.kept.Load().notAfter }

// errNone answers who asks for a certificate where there is none.
var errNone = errors.New("certs: there is no certificate to show")

// Server is how connections are accepted that speak one of the protocols. What is shown and
// believed is that of the moment of each handshake.
func (k *Keeper) Server(protocols ...string) *tls.Config {
	return k.server(tls.RequireAndVerifyClientCert, protocols)
}

// ServerForAll is [Keeper.Server] for a port on which nobody is asked for a certificate.
func (k *Keeper) ServerForAll(protocols ...string) *tls.Config {
	return k.server(tls.NoClientCert, protocols)
}

func (k *Keeper) server(asked tls.ClientAuthType, protocols []string) *tls.Config {
	base := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: protocols, SessionTicketsDisabled: true}
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now := k.kept.Load()
		if len(now.shown) == 0 {
			return nil, errNone
		}
		config := base.Clone()
		config.GetConfigForClient = nil
		config.Certificates = now.shown
		if asked != tls.NoClientCert && now.believed != nil {
			config.ClientAuth, config.ClientCAs = asked, now.believed
		}
		return config, nil
	}
	return base
}

// Client is how one connection is dialed: with what is shown and believed now. Who answers has
// to be the host that is dialed.
func (k *Keeper) Client(host string) *tls.Config {
	now := k.kept.Load()
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: host,
		Certificates: now.shown, RootCAs: now.believed,
	}
}

// Listener encrypts what comes in over another one. The handshake takes place with the first Read
// or Write, and within the deadline of that.
func (k *Keeper) Listener(of net.Listener) net.Listener {
	return &listener{Listener: of, config: k.Server()}
}

type listener struct {
	net.Listener
	config *tls.Config
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn{tls.Server(raw, l.config)}, nil
}

// Dialer encrypts what another one dials. It returns once both ends have shown what they are
// asked for; whether the far one has believed it is known with the first Read.
func (k *Keeper) Dialer(dial func(context.Context, string) (net.Conn, error)) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		raw, err := dial(ctx, address)
		if err != nil {
			return nil, err
		}
		secured := tls.Client(raw, k.Client(host))
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, err
		}
		return conn{secured}, nil
	}
}

// conn is closed without a word to the far end. TLS would take up to 5 s to say goodbye to one
// that does not read, and what is spoken here has ends of its own.
type conn struct{ *tls.Conn }

// Close implements [net.Conn].
func (c conn) Close() error { return c.NetConn().Close() }
