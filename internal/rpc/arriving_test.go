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
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	say := func(client, server net.Conn, text string) error {
		go func() { _, _ = io.WriteString(client, text) }()
		_, err := io.ReadFull(server, make([]byte, len(text)))
		return err
	}
	settled, itsServer := come()
	for _, part := range []string{preface[:10], preface[10:]} { // in whatever pieces
		if err := say(settled, itsServer, part); err != nil {
			t.Fatal(err)
		}
	}
	half, halfServer := come()
	if err := say(half, halfServer, preface[:23]); err != nil {
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
	go func() { _, _ = io.WriteString(client, preface) }()
	late := &linkedConn{Conn: raw, raw: raw, link: &link{}, arriving: arriving, awaited: prefaceBytes}
	if n, err := late.Read(make([]byte, 99)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("%d bytes were heard of one that was ended, %v", n, err)
	}
	_, _ = client.Close(), late.Close()
	if err := say(half, halfServer, preface[23:]); err == nil {
		t.Error("one that had not said what for was not ended")
	}
	if err := say(settled, itsServer, "more"); err != nil {
		t.Errorf("one that is open was ended: %v", err)
	}
	if _, _, err := accept.ServerHandshake(raw); !errors.Is(err, net.ErrClosed) {
		t.Errorf("one that comes later: %v", err)
	}
}
