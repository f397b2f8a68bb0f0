package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// tokensVariable holds the tokens of those who may send alerts: a command line is seen by
// every user of a machine.
const tokensVariable = "TRADEGATEWAY_TOKENS"

// settings are what a gateway is started with.
type settings struct {
	listen       string
	coordinators string
	namespace    string
	venues       map[string]string // name → URL
	accounts     map[[sha256.Size]byte]string
	window       time.Duration
	pendingTTL   time.Duration
	validFor     time.Duration
	lookupLag    time.Duration
	settleEvery  time.Duration
}

// longest is how long one request may take: to reserve, to order, and to record.
func (s settings) longest() time.Duration {
	return reserveTimeout + duplicateWait + s.pendingTTL + settleTimeout + time.Second
}

func main() {
	log := slog.New(slog.NewJSONHandler(os.Stderr, nil))
	s, err := parseSettings(os.Args[1:], os.Getenv(tokensVariable), os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "tradegateway: "+err.Error())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the process at once
	}()
	if err := serve(ctx, s, log); err != nil {
		fmt.Fprintln(os.Stderr, "tradegateway: "+err.Error())
		os.Exit(1)
	}
}

// parseSettings reads the command line and checks it.
func parseSettings(arguments []string, tokens string, stderr io.Writer) (settings, error) {
	s := settings{venues: map[string]string{}, accounts: map[[sha256.Size]byte]string{}}
	flags := flag.NewFlagSet("tradegateway", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8080", "host:port to listen on")
	flags.StringVar(&s.coordinators, "coordinator", "127.0.0.1:7420", "host:port of the coordinator's nodes, with commas between them")
	flags.StringVar(&s.namespace, "namespace", "tradegateway", "tenant at the coordinator; of gateways with the same venues only")
	flags.Func("venue", "exchange:mode=URL of a place to trade at; may be repeated", func(text string) error {
		name, url, _ := strings.Cut(text, "=")
		if name == "" || url == "" {
			return errors.New("it must be like sim:live=http://127.0.0.1:9100")
		}
		s.venues[name] = url
		return nil
	})
	flags.DurationVar(&s.window, "window", time.Minute, "alerts without a key that order the same are one, for so long from the first")
	flags.DurationVar(&s.pendingTTL, "pending-ttl", 30*time.Second, "how long an order may take before it is in doubt")
	flags.DurationVar(&s.validFor, "valid-for", 5*time.Second, "how long the exchange may take to accept an order; three times that and the lag fit into --pending-ttl")
	flags.DurationVar(&s.lookupLag, "lookup-lag", time.Second, "how long after it was accepted an order may be missing from lookups")
	flags.DurationVar(&s.settleEvery, "settle-every", 10*time.Second, "how often orders in doubt are looked for at their exchange; 0: never, an operator does")
	if err := flags.Parse(arguments); err != nil {
		return s, err
	}
	for pair := range strings.SplitSeq(tokens, ",") {
		account, token, _ := strings.Cut(pair, "=")
		if account == "" || token == "" {
			return s, fmt.Errorf("%s must be like alice=secret,bob=secret", tokensVariable)
		}
		s.accounts[sha256.Sum256([]byte(token))] = account
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("no argument is expected, there is %q", flags.Arg(0))
	case len(s.venues) == 0:
		return s, errors.New("there is no --venue")
	case s.validFor < 100*time.Millisecond, s.lookupLag < 0, s.pendingTTL < 3*s.validFor+s.lookupLag:
		return s, fmt.Errorf("--valid-for must be 100ms or more, --lookup-lag 0 or more, and three times the one and the other fit into --pending-ttl; they are %v, %v and %v",
			s.validFor, s.lookupLag, s.pendingTTL)
	case s.settleEvery < 0:
		return s, fmt.Errorf("--settle-every is %v, it must be 0 or more", s.settleEvery)
	}
	return s, nil
}

// serve takes alerts until ctx ends, and then finishes those that it has.
func serve(ctx context.Context, s settings, log *slog.Logger) error {
	endpoints := strings.Split(s.coordinators, ",")
	coordinator, err := client.Dial(endpoints, client.WithSettleTimeout(settleTimeout), client.WithLogger(log))
	if err != nil {
		return err
	}
	defer coordinator.Close() //nolint:errcheck // it always closes
	g := &gateway{
		coordinator: coordinator, namespace: s.namespace, accounts: s.accounts, venues: map[string]*venue{},
		window: s.window, pendingTTL: s.pendingTTL, log: log,
	}
	for name, url := range s.venues {
		g.venues[name] = newVenue(url, s.validFor, s.lookupLag)
	}
	settling, err := newSettler(g, endpoints)
	if err != nil {
		return err
	}
	defer settling.close()

	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler: g.handler(), ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: s.longest() + 10*time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var background sync.WaitGroup
	defer background.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if s.settleEvery > 0 {
		background.Go(func() { settling.run(ctx, s.settleEvery) })
	}
	log.Info("listening", "address", listener.Addr().String())

	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	log.Info("stopping: no new alerts, and orders in flight are finished", "within", s.longest().String())
	bound, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.longest())
	defer cancel()
	if err := server.Shutdown(bound); err != nil {
		return fmt.Errorf("orders in flight were cut off, and are in doubt: %w", err)
	}
	log.Info("stopped")
	return nil
}
