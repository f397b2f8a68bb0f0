package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/certs"
	"github.com/atmostonce/coordinator/internal/certs/certstest"
	"github.com/atmostonce/coordinator/internal/node"
	"github.com/atmostonce/coordinator/internal/reason"
)

// startSecured starts a node by itself that speaks TLS where it is given files, and waits for its
// shards.
func startSecured(t *testing.T, files certs.Files) string {
	t.Helper()
	cfg := node.Default()
	cfg.DataDir = filepath.Join(t.TempDir(), "data")
	cfg.Listen, cfg.FreeBytesMin, cfg.TLS = "127.0.0.1:0", 0, files
	n, err := node.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := n.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	select {
	case <-n.Ready():
	case <-n.Done():
		t.Fatal(n.Err())
	}
	return n.Address().String()
}

// startProbes starts a port that speaks TLS and HTTP/1.1, and waits for it.
func startProbes(t *testing.T, files certs.Files) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(files.Certificate, files.Key)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// led waits until each shard of a node has a leader: a call waits for the one of its own.
func led(t *testing.T, endpoint string, flags ...string) {
	t.Helper()
	for i := range 20 {
		code, _, stderr := in(t, nil, append(flags, "get", "--endpoints", endpoint, "--timeout", "30s", fmt.Sprint("nobody-", i))...)
		if code != reason.ExitNotOwner {
			t.Fatalf("the node answers with exit code %d, %s", code, stderr)
		}
	}
}

// Every command speaks TLS where it is told to, with the certificate that it is given.
func TestTLS(t *testing.T) {
	leakless(t)
	ours, theirs := certstest.New(t, "ours"), certstest.New(t, "theirs")
	files, stranger := ours.Write(t, t.TempDir()), theirs.Write(t, t.TempDir())
	asks := startSecured(t, files)
	takesAll := startSecured(t, certs.Files{Certificate: files.Certificate, Key: files.Key})
	plain := startSecured(t, certs.Files{})
	uncalled := startProbes(t, files)
	servers := certs.Files{Certificate: filepath.Join(t.TempDir(), "cert.pem"), Key: filepath.Join(t.TempDir(), "key.pem")}
	certificate, key := ours.SignFor(t, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, time.Now().Add(time.Hour), "127.0.0.1")
	certstest.Put(t, servers.Certificate, certificate)
	certstest.Put(t, servers.Key, key)

	ca := []string{"--tls-ca", files.Authorities}
	own := []string{"--tls-ca", files.Authorities, "--tls-cert", files.Certificate, "--tls-key", files.Key}
	led(t, asks, own...)
	led(t, takesAll, ca...)
	led(t, plain)
	type told struct {
		code   int
		stderr string
	}
	tests := map[string]struct {
		endpoint string
		flags    []string
		want     string // of what is said; "": it is done
	}{
		"as it should be":           {asks, own, ""},
		"nobody is asked":           {takesAll, ca, ""},
		"more than is asked for":    {takesAll, own, ""},
		"the system's authorities":  {takesAll, []string{"--tls"}, "cannot connect to " + takesAll + ": failed to verify certificate: x509: certificate signed by unknown authority"},
		"of another authority":      {takesAll, []string{"--tls-ca", stranger.Authorities}, "signed by unknown authority"},
		"TLS to a node without":     {plain, ca, "leave the --tls flags out"},
		"TLS to the probes' port":   {uncalled, ca, "cannot connect to " + uncalled + ": it is no port for calls"},
		"plain text to a node with": {takesAll, nil, takesAll + " does not answer as a coordinator: it hangs, is something else, or speaks TLS, as with --tls-ca"},
		"no certificate":            {asks, ca, "it asks for a certificate, and none is given with --tls-cert: "},
		"another's certificate":     {asks, append(ca, "--tls-cert", stranger.Certificate, "--tls-key", stranger.Key), "it does not take the certificate of --tls-cert: "},
		"a server's certificate":    {asks, append(ca, "--tls-cert", servers.Certificate, "--tls-key", servers.Key), "it does not take the certificate of --tls-cert: bad certificate (" + certificateIs},
	}
	commands := func(name string) map[string][]string {
		return map[string][]string{
			"reserve": {"reserve", name}, "shards": {"shards"}, "bench": {"bench", "pairs", "--count", "3", "--no-progress"},
			"run": {"run", "--key", name + ", run", "--", "true"},
		}
	}
	// A refusal takes all of its time, so that all of them are begun at once.
	begun := map[string]chan told{}
	for name, test := range tests {
		timeout := "30s"
		if test.want != "" {
			timeout = "6s"
		}
		for command, words := range commands(name) {
			if test.want == "" && command == "run" {
				continue // it would start this program as its guard
			}
			line := append(append([]string{"--endpoints", test.endpoint, "--timeout", timeout}, test.flags...), words...)
			ended := make(chan told, 1)
			begun[name+", "+command] = ended
			go func() {
				code, _, stderr := in(t, nil, line...)
				ended <- told{code, stderr}
			}()
		}
	}
	all := map[string]told{}
	for line, ended := range begun {
		all[line] = <-ended
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for command := range commands(name) {
				got, asked := all[name+", "+command]
				if !asked {
					continue
				}
				refused := reason.ExitUnavailable
				if command == "run" {
					refused += exitOfRun
				}
				switch {
				case test.want == "" && (got.code != 0 || got.stderr != ""):
					t.Errorf("%s: exit code %d, %s", command, got.code, got.stderr)
				case test.want != "" && got.code != refused:
					t.Errorf("%s: exit code %d, %s", command, got.code, got.stderr)
				case !strings.Contains(got.stderr, test.want) || strings.Contains(got.stderr, "desc ="):
					t.Errorf("%s: %q, want %q", command, got.stderr, test.want)
				}
			}
		})
	}
	environment := []string{"COORDCTL_TLS_CA=" + files.Authorities, "COORDCTL_TLS_CERT=" + files.Certificate, "COORDCTL_TLS_KEY=" + files.Key}
	if code, _, stderr := in(t, environment, "shards", "--endpoints", asks); code != 0 {
		t.Errorf("by the environment: exit code %d, %s", code, stderr)
	}
}

// Why TLS came to nothing is said so that somebody can do something.
func TestWhyTLSIsNotSpoken(t *testing.T) {
	remote := func(alert tls.AlertError) error { return &net.OpError{Op: "remote error", Err: alert} }
	for want, errs := range map[string][]error{
		errPlain.Error():    {tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}},
		errNoTLS.Error():    {io.EOF, fmt.Errorf("read: %w", syscall.ECONNRESET)},
		errUncalled.Error(): {remote(120), errors.New("credentials: cannot check peer: missing selected ALPN property")},
		"it asks for a certificate, and none is given with --tls-cert: certificate required": {remote(116)},
		"it asks for a certificate, and none is given with --tls-cert: bad certificate":      {remote(42)},
		"remote error: tls: internal error":                                                  {remote(80)},
	} {
		for _, err := range errs {
			if got := unspokenInWords(err, false).Error(); got != want {
				t.Errorf("%v: %q, want %q", err, got, want)
			}
		}
	}
	for said, alert := range map[string]tls.AlertError{"bad certificate": 42, "expired certificate": 45, "unknown certificate authority": 48} {
		want := "it does not take the certificate of --tls-cert: " + said + " (" + certificateIs + ")"
		if got := unspokenInWords(remote(alert), true).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a node has against TLS holds until it speaks it, and not until its port is reached again; where
// all nodes are asked, one that could not be connected to is told first.
func TestContacts(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	c := &control{}
	told := func(want string) {
		t.Helper()
		latest, _ := c.contacts.latest()
		if got := c.unconnected(latest); got != address+want && got != "cannot connect to "+address+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	dial := func() {
		if conn, err := c.contacts.dial(t.Context(), address); err == nil {
			_ = conn.Close()
		}
	}
	if latest, failed := c.contacts.latest(); latest != "" || failed || c.contacts.any() {
		t.Errorf("%q before anything is connected to", latest)
	}
	dial()
	told(" does not answer as a coordinator: it hangs, is something else, or speaks TLS, as with --tls-ca")
	c.security.tls = true
	told(" does not answer as a coordinator: it hangs, is something else, or asks for a certificate, as with --tls-cert")
	c.contacts.spoken(address, errPlain)
	dial()
	c.contacts.spoken("another", nil)
	told(": " + errPlain.Error())
	c.contacts.spoken(address, nil)
	dial()
	told(" does not answer as a coordinator: it hangs, is something else, or asks for a certificate, as with --tls-cert")
	c.security.files.Certificate = "cert.pem"
	told(" does not answer as a coordinator: it hangs, is something else, or does not take the certificate of --tls-cert")
	_ = listener.Close()
	dial()
	c.contacts.spoken("another", nil)
	told(": connection refused")
}

// What does not fit together is said before anything is asked.
func TestWhatIsWrongWithTLSFlags(t *testing.T) {
	files := certstest.New(t, "ours").Write(t, t.TempDir())
	absent := filepath.Join(t.TempDir(), "absent.pem")
	for _, test := range []struct {
		environment, flags []string
		want               string
	}{
		{nil, []string{"--tls-cert", files.Certificate}, "--tls-key is missing: it is the key of --tls-cert"},
		{nil, []string{"--tls-key", files.Key}, "--tls-cert is missing: --tls-key is of no use without it"},
		{nil, []string{"--tls-ca", absent}, "--tls-ca names " + absent + ", which cannot be read: no such file or directory"},
		{nil, []string{"--tls-ca", ""}, "--tls-ca is empty"},
		{nil, []string{"--tls=false", "--tls-ca", files.Authorities}, "--tls is false, and files are given to encrypt with"},
		{[]string{"COORDCTL_TLS_CA=" + absent}, nil, "COORDCTL_TLS_CA names " + absent},
		{[]string{"COORDCTL_TLS_KEY=-----BEGIN PRIVATE KEY-----\nSECRET", "COORDCTL_TLS_CERT=" + files.Certificate}, nil, "COORDCTL_TLS_KEY holds PEM text, and takes the name of a file\n"},
		{[]string{"COORDCTL_TLS=false", "COORDCTL_TLS_CA=" + files.Authorities}, nil, "COORDCTL_TLS is false, and files are given to encrypt with"},
		{[]string{"COORDCTL_TLS=perhaps"}, nil, `COORDCTL_TLS is "perhaps", it must be true or false`},
		{[]string{"COORDCTL_TLS_CRT=x"}, nil, "unknown environment variable COORDCTL_TLS_CRT; the nearest that there is: COORDCTL_TLS_CERT"},
	} {
		code, stdout, stderr := in(t, test.environment, append([]string{"shards"}, test.flags...)...)
		if code != reason.ExitUsage || stdout != "" || !strings.Contains(stderr, test.want) || strings.Contains(stderr, "SECRET") {
			t.Errorf("%v %v: exit code %d, %q, want %q", test.environment, test.flags, code, stderr, test.want)
		}
	}
}
