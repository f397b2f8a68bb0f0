// Command exchange is a fake exchange, to show a gateway what real ones do at their worst.
//
//	GET  /time                        its clock
//	POST /orders                      submit an order; a market order, filled at once and whole
//	GET  /orders?client_order_id=ID   what became of one
//	GET  /fills                       every fill there ever was, for whoever counts
//	PUT  /faults/SYMBOL               how the next submissions of a symbol go wrong, one each
//
// Client order ids are kept and can be asked for, and do not protect: a second
// submission under the same id is a second fill. Exchanges differ in this. Several want the
// id to be unique among *open* orders only, and an order that was filled is open no more;
// some forget ids after a time, or know none. A gateway that is right here is right with
// all of them.
//
// What it does offer is what a gateway needs to find out: an order carries the moment,
// on the exchange's own clock, from which it is not accepted any more, and a lookup that
// says what the clock was. Real ones call it valid_until, expTime, deadline or recvWindow.
//
// Its clock is the machine's. Nothing is kept over a restart.
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
	listen := flag.String("listen", "127.0.0.1:9100", "host:port to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := serve(ctx, *listen, slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		fmt.Fprintln(os.Stderr, "exchange: "+err.Error())
		os.Exit(1)
	}
}

// serve answers until ctx ends.
func serve(ctx context.Context, listen string, log *slog.Logger) error {
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	log.Info("listening", "address", listener.Addr().String())
	server := &http.Server{
		Handler: newExchange(log).handler(), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 2*delayMost + 10*time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	go func() {
		<-ctx.Done()
		_ = server.Close() // it is a fake: what is queued is gone
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
