// Command leasebroker leases machines: a provisioning API whose every call is carried out
// once, whatever is lost, cut or killed on the way, and however often it is sent again.
//
//	POST   /v1/workers               lease a worker: {"flavor": "small", "lease_seconds": 3600}
//	DELETE /v1/workers/{id}          end its lease
//	POST   /v1/workers/{id}/reboot   reboot it
//	GET    /v1/workers, /v1/workers/{id}
//
// It is an example of how to guard work that takes several steps on several systems. In
// the order in which to read it:
//
//   - broker.go: the three operations, each a list of steps;
//   - hypervisor.go: calls to a system that acts outside of our transactions;
//   - pool.go: what the broker itself keeps, in one file;
//   - sweep.go: what becomes of work that nobody comes back to finish.
//
// README.md has what happens where it can crash, and hypervisor/ a hypervisor to try it
// with.
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
	"net/url"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/httpadmit"
)

// Bounds of the process. Those of an operation are in broker.go.
const (
	requestsMost = 256              // at a time; more are told to come back
	bodyMost     = 16 << 10         // bytes of a request
	settleMost   = 15 * time.Second // the longest that a caller waits for its answer to be recorded
	admitMost    = 3 * time.Second  // the longest that the coordinator is asked before the answer is no
	stopMost     = 30 * time.Second // for what is being carried out when the process is told to stop
	capacityMost = 1000
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	switch err := run(ctx, os.Args[1:], os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "leasebroker:", err)
		os.Exit(1)
	}
}

// settings are what the command line says.
type settings struct {
	listen        string
	coordinators  []string
	hypervisor    string
	hypervisorTry time.Duration
	state         string
	capacity      int
	accounts      map[[sha256.Size]byte]string // by the hash of the token
	pendingTTL    time.Duration
	createWithin  time.Duration
	sweepEvery    time.Duration
}

func parse(arguments []string, out io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("leasebroker", flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are told once, by main
	flags.StringVar(&s.listen, "listen", "127.0.0.1:8080", "host:port to listen on")
	coordinators := flags.String("coordinator", "127.0.0.1:7420", "host:port of each node of the coordinator, separated by commas")
	flags.StringVar(&s.hypervisor, "hypervisor", "http://127.0.0.1:8090", "URL of the hypervisor")
	flags.DurationVar(&s.hypervisorTry, "hypervisor-try", 5*time.Second, "the longest that one try of a call to it may take")
	flags.StringVar(&s.state, "state", "leasebroker.db", "file that holds the pool")
	flags.IntVar(&s.capacity, "capacity", 10, "workers at a time")
	accounts := flags.String("accounts", os.Getenv("LEASEBROKER_ACCOUNTS"), "account=token of each caller, separated by commas (default: LEASEBROKER_ACCOUNTS)")
	flags.DurationVar(&s.pendingTTL, "pending-ttl", 15*time.Second, "after a crash, a key is free again when this has passed")
	flags.DurationVar(&s.createWithin, "create-within", 10*time.Minute, "a worker that nobody has finished creating by then is taken back")
	flags.DurationVar(&s.sweepEvery, "sweep-every", 10*time.Second, "time between two looks for leases that are over")
	switch err := flags.Parse(arguments); {
	case errors.Is(err, flag.ErrHelp):
		flags.SetOutput(out)
		flags.PrintDefaults()
		return s, err
	case err != nil:
		return s, err
	}
	s.coordinators = strings.Split(*coordinators, ",")
	var err error
	if s.accounts, err = parseAccounts(*accounts); err != nil {
		return s, err
	}
	u, err := url.Parse(s.hypervisor)
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("there is no argument %q", flags.Arg(0))
	case err != nil || u.Scheme == "" || u.Host == "":
		return s, fmt.Errorf("--hypervisor is %q, and must be a URL", s.hypervisor)
	case s.capacity < 1 || s.capacity > capacityMost:
		return s, fmt.Errorf("--capacity is %d, and must be 1 to %d", s.capacity, capacityMost)
	case s.pendingTTL < 100*time.Millisecond || s.pendingTTL > 24*time.Hour:
		return s, fmt.Errorf("--pending-ttl is %v, and must be 100ms to 24h", s.pendingTTL)
	case s.hypervisorTry <= 0, s.createWithin <= 0, s.sweepEvery <= 0:
		return s, errors.New("--hypervisor-try, --create-within and --sweep-every must be more than 0")
	}
	return s, nil
}

// parseAccounts reads account=token pairs.
func parseAccounts(text string) (map[[sha256.Size]byte]string, error) {
	accounts := make(map[[sha256.Size]byte]string)
	for pair := range strings.SplitSeq(text, ",") {
		account, token, ok := strings.Cut(pair, "=")
		if !ok || account == "" || token == "" {
			return nil, errors.New("--accounts must be account=token, separated by commas")
		}
		accounts[sha256.Sum256([]byte(token))] = account
	}
	return accounts, nil
}

// run serves until the context ends, and then finishes what it has begun.
func run(ctx context.Context, arguments []string, out io.Writer) error {
	s, err := parse(arguments, out)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(out, nil))
	pool, err := openPool(s.state, s.capacity)
	if err != nil {
		return err
	}
	defer pool.close()
	coordinator, err := client.Dial(s.coordinators, client.WithLogger(log))
	if err != nil {
		return err
	}
	defer coordinator.Close() //nolint:errcheck // it ends what it has going on, and says nothing else
	listener, err := net.Listen("tcp", s.listen)
	if err != nil {
		return err
	}
	hypervisor := newHypervisor(s.hypervisor, s.hypervisorTry)
	defer hypervisor.close()
	b := &broker{pool: pool, hypervisor: hypervisor, log: log, createWithin: s.createWithin}
	guard := httpadmit.New(coordinator,
		httpadmit.WithPrincipal(accountOf), httpadmit.WithKeyRequired(),
		// A crash leaves a reservation behind. It blocks its key for the pending TTL and then
		// reopens, because every step may safely be taken again; README.md says why. The TTL is
		// short, and work that goes on renews it: operationMost bounds for how long.
		httpadmit.WithOnLapse(client.Reopen), httpadmit.WithPendingTTL(s.pendingTTL), httpadmit.WithKeepAlive(),
		httpadmit.WithBodyLimit(bodyMost), httpadmit.WithReserveTimeout(admitMost), httpadmit.WithSettleWait(settleMost),
		httpadmit.WithLogger(log),
	)
	server := &http.Server{
		Handler:           atMost(requestsMost, authenticated(s.accounts, b.routes(guard))),
		ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 15 * time.Second, IdleTimeout: time.Minute,
		// From the end of a request's header to the end of its answer.
		WriteTimeout: 15*time.Second + admitMost + operationMost + settleMost + 15*time.Second,
		ErrorLog:     slog.NewLogLogger(log.Handler(), slog.LevelWarn), MaxHeaderBytes: 16 << 10,
	}
	log.Info("listening", "address", listener.Addr().String())
	return b.serve(ctx, server, listener, s.sweepEvery)
}

// serve answers requests and sweeps, until the context ends or the server fails.
func (b *broker) serve(ctx context.Context, server *http.Server, listener net.Listener, sweepEvery time.Duration) error {
	sweeping, stop := context.WithCancel(ctx)
	var sweeper sync.WaitGroup
	sweeper.Go(func() { b.sweepEvery(sweeping, sweepEvery) })
	defer sweeper.Wait()
	defer stop()
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	b.log.Info("stopping: no new requests, and those that are being carried out are finished")
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopMost)
	defer cancel()
	unfinished := server.Shutdown(bounded)
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	if unfinished != nil {
		// Its end is a crash to what is left, and no worse than one.
		return errors.Join(fmt.Errorf("requests were still being carried out after %v: %w", stopMost, unfinished), server.Close())
	}
	return nil
}

type accountKey struct{}

// authenticated finds out who asks, by a bearer token, before anything else is done.
func authenticated(accounts map[[sha256.Size]byte]string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		// A token is looked up by its hash: how long that takes tells nothing about the token.
		account := accounts[sha256.Sum256([]byte(token))]
		if !ok || account == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeProblem(w, &problem{status: http.StatusUnauthorized, code: "UNAUTHENTICATED", detail: "send a bearer token"})
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), accountKey{}, account)))
	})
}

// accountOf is whose keys a request uses, and whose workers it may touch.
func accountOf(r *http.Request) string {
	account, _ := r.Context().Value(accountKey{}).(string)
	return account
}

// atMost bounds how many requests are worked on at a time.
func atMost(most int, next http.Handler) http.Handler {
	places := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
			next.ServeHTTP(w, r)
		default:
			writeProblem(w, &problem{status: http.StatusServiceUnavailable, code: "BUSY", detail: "too many requests at a time; try again later with the same key"})
		}
	})
}
