package rpc

import (
	"errors"
	"io"
	"net"
	"testing"

	"google.golang.org/grpc/credentials/insecure"
)

// Who has said what for stays when the others are ended; nothing is heard of one that says it then,
// and none comes after that.
func TestArriving(t *testing.T) {
	arriving := new(Arriving)
	accept := linking{insecure.NewCredentials(), arriving}
	come := func() (client, server net.Conn) {
		client, raw := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		server, _, err := accept.ServerHandshake(raw)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		return client, server
	}
	const (
		preface  = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
		settings = preface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00" + "\x00\x03\x00\x00\x00\x64"
	)
	say := func(client, server net.Conn, text string) error {
		go func() { _, _ = io.WriteString(client, text) }()
		_, err := io.ReadFull(server, make([]byte, len(text)))
		return err
	}
	settled, itsServer := come()
	for i := range settings { // a byte at a time
		if n := len(arriving.conns); n != 1 {
			t.Fatalf("%d are arriving after %d bytes", n, i)
		}
		if err := say(settled, itsServer, settings[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range settings { // in two pieces, and with what follows
		client, server := come()
		for _, part := range []string{settings[:i], settings[i:] + "more"} {
			if err := say(client, server, part); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(arriving.conns); n != 0 {
		t.Fatalf("%d are arriving that have said what for", n)
	}
	// What gRPC refuses has not said it either: gRPC may wait for the rest.
	for _, other := range []string{
		preface + "\x00\x00\x01\x01\x00\x00\x00\x00\x01" + "\x82",                         // headers that go on
		preface + "\x00\x40\x01\x04\x00\x00\x00\x00\x00" + string(make([]byte, 16<<10+1)), // a byte more than a frame may have
	} {
		client, server := come()
		if err := say(client, server, other); err != nil {
			t.Fatal(err)
		}
		if n := len(arriving.conns); n != 1 {
			t.Errorf("%d are arriving", n)
		}
		_, _ = client.Close(), server.Close()
	}
	half, halfServer := come()
	if err := say(half, halfServer, settings[:len(settings)-1]); err != nil {
		t.Fatal(err)
	}
	gone, goneServer := come()
	_, _ = gone.Close(), goneServer.Close()
	if n := len(arriving.conns); n != 1 {
		t.Errorf("%d are arriving", n)
	}
	arriving.Close()
	// What was read in the very moment is not looked at.
	client, raw := net.Pipe()
	go func() { _, _ = io.WriteString(client, settings) }()
	late := &linkedConn{Conn: raw, raw: raw, link: &link{}, arriving: arriving}
	if n, err := late.Read(make([]byte, 99)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d bytes were heard of one that was ended, %v", n, err)
	}
	_, _ = client.Close(), late.Close()
	if err := say(half, halfServer, settings[len(settings)-1:]); err == nil {
		t.Error("one that had not said what for was not ended")
	}
	if err := say(settled, itsServer, "more"); err != nil {
		t.Errorf("one that is open was ended: %v", err)
	}
	if _, _, err := accept.ServerHandshake(raw); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one that comes later: %v", err)
	}
}
