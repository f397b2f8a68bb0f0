package e2e

import (
	"crypto/rand"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/test/history"
	"github.com/atmostonce/coordinator/test/process"
)

// TestClientsLeaveTheNodeItsFiles: whoever reaches the port for clients opens connections until there
// are no more, and keeps them. The node has the files that it needs by itself: for further segments of
// its logs, among others.
func TestClientsLeaveTheNodeItsFiles(t *testing.T) {
	t.Parallel() // it waits more than it works
	const files = 1024
	c := process.New(t, programs, 1)
	n := c.Nodes[0]
	must(t, n.StartUnder([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$@"`, files), "sh"}))
	must(t, n.Serving(30*time.Second))
	all := &caller{nodes: c.Nodes, shards: shardsDefault, log: history.NewRecorder(), try: 3 * time.Second, within: time.Minute}
	commit := func(key string) {
		t.Helper()
		_, granted, err := all.reserve(t.Context(), 0, call{key: key})
		must(t, err)
		body := make([]byte, 1<<20-100)
		_, _ = rand.Read(body)
		must(t, all.commit(t.Context(), 0, granted, &coordinatorv1.Response{Code: 200, Body: body}))
	}
	commit("before")

	// The beginning of HTTP/2, after which a connection may say nothing for as long as it likes.
	const begin = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	var held []net.Conn
	defer func() {
		for _, conn := range held {
			_ = conn.Close()
		}
	}()
	for range files {
		conn, err := net.Dial("tcp", c.Endpoints()[0])
		must(t, err)
		held = append(held, conn)
		_, _ = conn.Write([]byte(begin)) // to one that was refused it may be an error
	}
	for i := range shardsDefault * 12 { // a segment takes eight
		commit(fmt.Sprint(i))
	}
	must(t, n.Serving(time.Second))
	if log := n.Output(); !strings.Contains(log, "refused a connection: as many are open as may be") || strings.Contains(log, "too many open files") {
		t.Errorf("the node says %s", log)
	}
}
