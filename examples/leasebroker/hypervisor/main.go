// Command hypervisor is a fake one, which makes machines that do not exist, and fails
// when it is told to.
//
//	POST /machines                  make a machine: {"name": …, "flavor": "small"}
//	POST /machines/{id}/reboot      reboot it
//	POST /machines/{id}/terminate   end it; ending it again is fine
//	GET  /machines                  every machine there ever was, for whoever counts
//	POST /faults                    how calls to come go wrong
//	GET  /faults                    which of them are left, how many calls are held, and
//	                                how many were carried out or refused
//	DELETE /faults                  none from now on; what is held goes on
//
// It protects its callers in the way that cloud APIs do: a call carries a Client-Token,
// and the second call with the same token gets the machine of the first and changes
// nothing. A name is a label and protects nobody: two machines may have the same.
//
// What it says counts: 2xx means that it is done, 4xx that this call did nothing. After
// everything else, and after silence, nobody knows.
//
// Machines and tokens are kept in memory for as long as it runs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8090", "host:port to listen on")
	capacity := flag.Int("capacity", 100, "machines that run at a time, at most")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *listen, *capacity); err != nil {
		fmt.Fprintln(os.Stderr, "hypervisor:", err)
		os.Exit(1)
	}
}

// run serves until the context ends.
func run(ctx context.Context, listen string, capacity int) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	h := newHypervisor(capacity)
	server := &http.Server{
		Handler: h.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 2*heldMost + 10*time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	slog.Info("listening", "address", listener.Addr().String(), "capacity", capacity)
	stopped := make(chan error, 1)
	go func() {
		<-ctx.Done()
		h.faults.clear() // nothing is held back any more
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		stopped <- server.Shutdown(bounded)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return <-stopped
}
