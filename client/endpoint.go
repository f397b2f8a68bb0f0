package client

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

const (
	portMax      = 1<<16 - 1
	hostBytesMax = 255 // of a name in DNS, its dots included
)

// checkEndpoint reports what is wrong with an address that nobody could connect to however
// often it was tried, beginning with a verb.
func checkEndpoint(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		var wrong *net.AddrError
		if errors.As(err, &wrong) {
			return fmt.Errorf("is not host:port: %s", wrong.Err)
		}
		return errors.New("is not host:port")
	}
	switch number, err := strconv.ParseUint(port, 10, 64); {
	case port == "":
		return errors.New("has no port")
	case err != nil && !errors.Is(err, strconv.ErrRange):
		return fmt.Errorf("has the port %q, it must be a number from 1 to %d", port, portMax)
	case err != nil || number < 1 || number > portMax:
		return fmt.Errorf("has the port %s, it must be from 1 to %d", port, portMax)
	}
	switch {
	case host == "":
		return errors.New("has no host; this machine itself is 127.0.0.1 or [::1]")
	case len(host) > hostBytesMax:
		return fmt.Errorf("has a host of %d bytes, the limit is %d", len(host), hostBytesMax)
	}
	if at := strings.IndexFunc(host, notInHost); at >= 0 {
		return fmt.Errorf("has %q in its host, which is no part of a name or an IP address", []rune(host[at:])[0])
	}
	return nil
}

// notInHost reports whether a character is in no name of a host and in no IP address. Which
// names there are is for whoever resolves them to say.
func notInHost(r rune) bool {
	return r <= ' ' || r == 0x7f || strings.ContainsRune(`/\?#@%"'<>,;=`, r)
}
