package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/internal/certs/certstest"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// TestRenewal: nodes that speak TLS with each other move to another authority without a stop, one
// of them ends meanwhile as rudely as any, and callers get what they get without TLS.
func TestRenewal(t *testing.T) {
	t.Parallel() // it waits more than it works
	before, after := certstest.New(t, "before"), certstest.New(t, "after")
	files := before.Write(t, t.TempDir())
	c := process.Start(t, programs, 3,
		"--peer-tls-cert", files.Certificate, "--peer-tls-key", files.Key, "--peer-tls-ca", files.Authorities)
	log := history.NewRecorder()
	startProbes(t, c, log)

	// First both are believed, then the new one is shown, then the old one is forgotten.
	renewed := 0
	heard := func() {
		t.Helper()
		renewed++
		for _, n := range c.Nodes {
			deadline := time.Now().Add(time.Minute)
			for strings.Count(n.Output(), "certificates were read again") < renewed {
				if time.Now().After(deadline) {
					t.Fatal(fmt.Errorf("%s has not read its certificates again", n.Name))
				}
				time.Sleep(50 * time.Millisecond)
			}
		}
	}
	certstest.Put(t, files.Authorities, append(before.PEM(), after.PEM()...))
	heard()
	certificate, key := after.Sign(t, time.Now().Add(time.Hour), "127.0.0.1")
	certstest.Put(t, files.Certificate, certificate)
	certstest.Put(t, files.Key, key)
	heard()
	certstest.Put(t, files.Authorities, after.PEM())
	heard()

	leader, err := c.LeaderOfMost(30 * time.Second)
	must(t, err)
	must(t, leader.Kill())
	must(t, leader.Start())
	must(t, c.Serving(serviceWithin))
	verify(t, log)
}
