package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/atmostonce/coordinator/internal/certs"
	"github.com/atmostonce/coordinator/internal/environment"
)

// The flags by which connections are encrypted.
const (
	tlsFlag     = "tls"
	tlsCAFlag   = "tls-ca"
	tlsCertFlag = "tls-cert"
	tlsKeyFlag  = "tls-key"
)

// variableOf returns the environment variable that sets a flag's default.
func variableOf(flag string) string {
	return environmentPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// security is how connections are encrypted; nothing given: they are not.
type security struct {
	tls    bool
	files  certs.Files
	keeper *certs.Keeper // of the files; nil: plain text
	end    func()        // of looking at them; nil: nobody does
}

// credentials are how a node is connected to. spoken is told why TLS could not be spoken with one, or
// nil where it was.
func (s *security) credentials(spoken func(address string, err error)) credentials.TransportCredentials {
	if s.keeper == nil {
		return insecure.NewCredentials()
	}
	return noting{credentials.NewTLS(s.keeper.Client("")), s.keeper, spoken, s.shows()}
}

// watch looks at the files until close: a run may outlast what they hold, and connects again after
// that.
func (s *security) watch(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.keeper.Watch(ctx)
	}()
	s.end = func() { cancel(); <-ended }
}

func (s *security) close() {
	if s.end != nil {
		s.end()
	}
}

// encrypted reports whether connections are.
func (s *security) encrypted() bool { return s.tls || s.files.Given() }

// shows reports whether who asks for a certificate is shown one.
func (s *security) shows() bool { return s.files.Certificate != "" }

func (c *control) securityFlags(flags *pflag.FlagSet) {
	on, _ := strconv.ParseBool(environment.Lookup(c.environment, variableOf(tlsFlag))) // what is neither is refused in checkSecurity
	flags.BoolVar(&c.security.tls, tlsFlag, on,
		"encrypt, and believe the authorities of this system; any of the following encrypts, too; "+variableOf(tlsFlag)+" and so on set the defaults")
	for flag, file := range map[string]struct {
		to    *string
		usage string
	}{
		tlsCAFlag:   {&c.security.files.Authorities, "PEM file with the authorities of which one has signed what a node shows"},
		tlsCertFlag: {&c.security.files.Certificate, "PEM file with the certificate that a node is shown"},
		tlsKeyFlag:  {&c.security.files.Key, "PEM file with the key of --" + tlsCertFlag},
	} {
		flags.StringVar(file.to, flag, environment.Lookup(c.environment, variableOf(flag)), file.usage)
	}
}

// securityVariables are those that set the defaults of the flags.
func securityVariables() []string {
	return []string{variableOf(tlsFlag), variableOf(tlsCAFlag), variableOf(tlsCertFlag), variableOf(tlsKeyFlag)}
}

// checkSecurity reads the files, and has them looked at from then on.
func (c *control) checkSecurity(command *cobra.Command) error {
	s := &c.security
	if text := environment.Lookup(c.environment, variableOf(tlsFlag)); text != "" {
		if _, err := strconv.ParseBool(text); err != nil {
			return usagef("%s is %q, it must be true or false", variableOf(tlsFlag), text)
		}
	}
	switch {
	case c.source(command, tlsFlag) != "--"+tlsFlag && !s.tls && s.files.Given(), command.Flags().Changed(tlsFlag) && !s.tls && s.files.Given():
		return usagef("%s is false, and files are given to encrypt with", c.source(command, tlsFlag))
	case s.files.Certificate != "" && s.files.Key == "":
		return usagef("--%s is missing: it is the key of --%s", tlsKeyFlag, tlsCertFlag)
	case s.files.Key != "" && s.files.Certificate == "":
		return usagef("--%s is missing: --%s is of no use without it", tlsCertFlag, tlsKeyFlag)
	case !s.encrypted():
		return nil
	}
	opened, err := certs.Open(s.files, slog.New(slog.DiscardHandler))
	if file := (*certs.FileError)(nil); errors.As(err, &file) {
		flag := [...]string{certs.Certificate: tlsCertFlag, certs.Key: tlsKeyFlag, certs.Authorities: tlsCAFlag}[file.Part]
		return usagef("%s %s", c.source(command, flag), file.OfSetting())
	}
	if err != nil {
		return err
	}
	s.keeper = opened
	s.watch(context.WithoutCancel(command.Context())) // a signal is no end of a run
	return nil
}

// source is where the value of a flag is from.
func (c *control) source(command *cobra.Command, flag string) string {
	if !command.Flags().Changed(flag) && environment.Lookup(c.environment, variableOf(flag)) != "" {
		return variableOf(flag)
	}
	return "--" + flag
}

// noting are credentials that keep in mind why a connection came to nothing: what gRPC makes of it
// is not for people. Each connection is made with what the files hold by then.
type noting struct {
	credentials.TransportCredentials // of the beginning; they shake no hands
	keeper                           *certs.Keeper
	spoken                           func(address string, err error)
	shows                            bool // a certificate
}

// ClientHandshake implements [credentials.TransportCredentials].
func (n noting) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := credentials.NewTLS(n.keeper.Client("")).ClientHandshake(ctx, authority, raw)
	if err != nil {
		n.spoken(authority, unspokenInWords(err, n.shows))
		return nil, nil, err
	}
	return &notedConn{Conn: conn, shows: n.shows, spoken: func(err error) { n.spoken(authority, err) }}, info, nil
}

// Clone implements [credentials.TransportCredentials].
func (n noting) Clone() credentials.TransportCredentials {
	return noting{n.TransportCredentials.Clone(), n.keeper, n.spoken, n.shows}
}

// What a node has against the certificate that it is shown, and against none.
const (
	wantsCertificate  = "asks for a certificate"
	refusesOwn        = "does not take the certificate of --" + tlsCertFlag
	certificateIs     = "one that it takes is signed by its --tls-client-ca, valid now and, if it names what it is for, for clients: clientAuth"
	noneGiven         = "and none is given with --" + tlsCertFlag
	wantsAsWithAnyOne = wantsCertificate + ", as with --" + tlsCertFlag
)

// Why TLS is not spoken with a port.
var (
	errPlain    = errors.New("it speaks plain text: leave the --tls flags out")
	errNoTLS    = errors.New("it ended the connection in place of speaking TLS, as what speaks plain text does: then leave the --tls flags out")
	errUncalled = errors.New("it is no port for calls: it speaks TLS, and no HTTP/2")
)

// unspokenInWords is why TLS came to nothing, in words that say what to do where somebody can do
// something. shows says that a certificate is shown to who asks for one.
func unspokenInWords(err error, shows bool) error {
	var (
		record tls.RecordHeaderError
		said   = alert(err)
	)
	switch {
	case errors.As(err, &record):
		return errPlain
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET):
		return errNoTLS
	case said == noProtocol, strings.Contains(err.Error(), "missing selected ALPN property"): // gRPC has no name for it
		return errUncalled
	case strings.Contains(said, "certificate") && !shows:
		return fmt.Errorf("it %s, %s: %s", wantsCertificate, noneGiven, said)
	case strings.Contains(said, "certificate"):
		return fmt.Errorf("it %s: %s (%s)", refusesOwn, said, certificateIs)
	}
	return err
}

// noProtocol is the alert of who speaks TLS, and nothing in it that is asked for.
var noProtocol = alertName(tls.AlertError(120))

// alert is what the far end has against this one; "": it has said nothing. The types of package tls
// for it are its own.
func alert(err error) string {
	if said := (*net.OpError)(nil); errors.As(err, &said) && said.Op == "remote error" {
		return alertName(said.Err)
	}
	return ""
}

func alertName(alert error) string { return strings.TrimPrefix(alert.Error(), "tls: ") }

// notedConn keeps in mind what the far end has against this one, or that it has nothing: in TLS 1.3
// it says so only after the handshake.
type notedConn struct {
	net.Conn
	spoken func(error)
	shows  bool        // a certificate
	heard  atomic.Bool // something but an alert
}

// Read implements [net.Conn].
func (c *notedConn) Read(into []byte) (int, error) {
	n, err := c.Conn.Read(into)
	switch {
	case n > 0 && !c.heard.Swap(true):
		c.spoken(nil)
	case err != nil && alert(err) != "":
		c.spoken(unspokenInWords(err, c.shows))
	}
	return n, err
}
