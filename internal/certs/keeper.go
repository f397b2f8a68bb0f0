package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"
)

// LookEvery is how often the files are looked at.
const LookEvery = 10 * time.Second

// settledAfter is how long files that have changed must stay as they are before anything is made of
// them: whoever renews them writes one after the other, and some of them in parts, of which each can
// be read.
const settledAfter = time.Second

// Keeper keeps what the files of a port hold. Its methods may be called from any goroutine.
type Keeper struct {
	files  Files
	logger *slog.Logger
	host   string // see Among; "": nothing is known of other ends
	told   string // why the log was told that what is shown is not believed; "": it was not
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
	k.kept.Store(&kept{made, read})
	k.tell()
	return k, nil
}

// Among says that ends with the same authorities dial this one by a host, and are dialed by it.
// Where they would not believe what is shown the log is told, now and whenever it is renewed. It is
// called before [Keeper.Watch].
func (k *Keeper) Among(host string) {
	k.host = host
	k.tell()
}

// Why what is shown is not believed.
const (
	ofNobody = "nobody believes the certificate that is shown"
	ofAlike  = "ends with the same authorities do not believe the certificate that is shown"
)

// tell tells the log that what is shown is not believed, once for each reason. It may be so at the
// start, by a renewal or for want of one.
func (k *Keeper) tell() {
	shown, now := k.kept.Load().material, time.Now()
	why, told, level := shown.untimely(now), ofNobody, slog.LevelError
	if why == nil && k.host != "" {
		why, told, level = shown.disbelief(k.host, now), ofAlike, slog.LevelWarn
	}
	if why == nil {
		told = ""
	}
	if told != k.told && why != nil {
		k.logger.Log(context.Background(), level, told, "error", k.files.wrong(why))
	}
	k.told = told
}

// wrong is the error of a certificate that is not believed.
func (f Files) wrong(why error) error { return &FileError{Certificate, f.Certificate, why.Error()} }

// errHangs is told where a look has not ended by the time of the next.
var errHangs = fmt.Errorf("reading the files takes longer than %v", LookEvery)

// Watch looks at the files every [LookEvery], until ctx ends. It does not wait for a look that
// hangs then.
func (k *Keeper) Watch(ctx context.Context) {
	k.watch(ctx, func() (bool, error) { return k.look(ctx) })
}

func (k *Keeper) watch(ctx context.Context, look func() (changed bool, err error)) {
	ticker := time.NewTicker(LookEvery)
	defer ticker.Stop()
	type outcome struct {
		changed bool
		err     error
	}
	var (
		told  error        // what the log was told last, and is still so
		looks chan outcome // nil: no look is under way
	)
	for {
		var now outcome
		select {
		case <-ctx.Done():
			return
		case now = <-looks:
			looks = nil
		case <-ticker.C:
			if looks == nil {
				under := make(chan outcome, 1)
				looks = under
				go func() {
					changed, err := look()
					under <- outcome{changed, err}
				}()
				continue
			}
			now.err = errHangs
		}
		switch {
		case now.err != nil && (told == nil || now.err.Error() != told.Error()):
			k.logger.Error("certificates cannot be renewed: those that were read before are kept", "error", now.err)
		case now.changed:
			k.logger.Info("certificates were read again", "file", k.files.Certificate, "not_after", k.NotAfter())
			k.told = "" // that was of another
		}
		told = now.err
		k.tell()
	}
}

// look takes up what the files hold now, unless it is a certificate that nobody believes now in
// place of one that is believed. What changes meanwhile is for the next look.
func (k *Keeper) look(ctx context.Context) (changed bool, err error) {
	before := k.kept.Load()
	first, err := k.files.read()
	if err == nil && first.equal(before.contents) {
		return false, nil
	}
	select {
	case <-ctx.Done():
		return false, nil
	case <-time.After(settledAfter):
	}
	read, err := k.files.read()
	if err != nil {
		return false, err
	}
	if first == nil || !read.equal(first) {
		return false, nil
	}
	made, err := k.files.parse(read)
	if err != nil {
		return false, err
	}
	now := time.Now()
	if why := made.untimely(now); why != nil && before.untimely(now) == nil {
		return false, k.files.wrong(why)
	}
	k.kept.Store(&kept{made, read})
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
	config := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: host, RootCAs: now.believed}
	if len(now.shown) > 0 {
		// Whatever authorities the far end names: it should say that it does not believe this one, not
		// that there was none.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &now.shown[0], nil }
	}
	return config
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
