package main

import (
	"crypto/tls"
	"log/slog"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/internal/certs"
	"github.com/atmostonce/coordinator/internal/certs/certstest"
)

// A command goes on for as long as a run, and connects again and again: it shows and believes what
// its files hold by then.
func TestFilesOfTLSAreRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, after := certstest.New(t, "before"), certstest.New(t, "after")
		renewed, own := after.Write(t, t.TempDir()), before.Write(t, t.TempDir())
		port, err := certs.Open(renewed, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		c := &control{world: world{signals: newSignals()}}
		defer c.close()
		command := c.root()
		command.SetContext(t.Context())
		c.security.files = own
		if err := c.checkSecurity(command); err != nil {
			t.Fatal(err)
		}
		with := c.security.credentials(func(string, error) {})
		connect := func() error {
			near, far := net.Pipe()
			node := tls.Server(far, port.Server("h2"))
			heard := make(chan error, 1)
			go func() { heard <- node.Handshake(); _ = far.Close() }()
			_, _, err := with.ClientHandshake(t.Context(), "127.0.0.1:1", near)
			_ = near.Close()
			if failed := <-heard; err == nil {
				err = failed
			}
			return err
		}
		if connect() == nil {
			t.Error("an authority was believed that is in no file")
		}
		certificate, key := after.Sign(t, time.Now().Add(time.Hour), "127.0.0.1")
		for path, text := range map[string][]byte{own.Certificate: certificate, own.Key: key, own.Authorities: after.PEM()} {
			certstest.Put(t, path, text)
		}
		time.Sleep(2 * certs.LookEvery)
		if err := connect(); err != nil {
			t.Errorf("after the renewal: %v", err)
		}
	})
}
