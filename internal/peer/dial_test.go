package peer

import (
	"context"
	"net"
	"strings"
	"testing"
)

// What a dial came to names the address once, whatever the system says of it.
func TestAFailedDialNamesItsAddressOnce(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	p := open(t, newNetwork(), "n1", incarnationA, "a:1", func(c *Config) {
		c.Dial = func(ctx context.Context, address string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", address)
		}
	})
	if _, err := p.Hello(t.Context(), nobody, HelloMessage{}); err == nil || strings.Count(err.Error(), nobody) != 1 {
		t.Errorf("got %v", err)
	}
}
