package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// lingerMax bounds how long calls that are still running may take once the shards are
// closed: by then each of them has its answer, and what remains are streams that a
// client would keep open for ever, such as a watch of the health service.
const lingerMax = 2 * time.Second

// forwardedMax bounds how long of that calls are waited for that another node carries out: one
// that is cut off may have been carried out, and its caller is told no more than that.
const forwardedMax = time.Second

// Stop stops the node gracefully, see the package comment. It returns when that is done,
// ctx ends or the stop has taken [Config].StopTimeout; further calls wait for the first
// and return what it does. The error says what did not end well.
func (n *Node) Stop(ctx context.Context) error {
	n.stopOnce.Do(func() {
		n.stopErr = n.stop(ctx)
		close(n.stopped)
	})
	<-n.stopped
	return n.stopErr
}

func (n *Node) stop(ctx context.Context) error {
	n.cfg.Logger.Info("stopping")
	ctx, cancel := context.WithTimeout(ctx, n.cfg.StopTimeout)
	defer cancel()
	n.cancel()
	n.health.Shutdown()

	// Nothing new from here on; what runs goes on.
	var draining sync.WaitGroup
	draining.Go(n.public.GracefulStop)
	draining.Go(n.internal.GracefulStop)
	drained := after(draining.Wait)
	n.arriving.Close() // the servers wait for them, and tell nobody before that they drain

	// As long as all are open here, calls find their way through this node to where they are led.
	// A disk that hangs keeps the clock from being written down: that is not waited for all the
	// time that there is.
	bounded, given := context.WithTimeout(ctx, n.cfg.StopTimeout/2)
	defer given()
	opening := n.shards.router.Load() == nil
	n.shards.giveUp(bounded)
	// What opens the shards cannot be interrupted; the rest ends at once.
	if !wait(ctx, after(n.work.Wait)) {
		return n.abandon(errors.New("the shards are still being opened, or the disk hangs"))
	}
	if opening { // there may be more of them by now
		n.shards.giveUp(bounded)
	}
	// From here on there is nothing more to hear of: who waits for a leader is told.
	close(n.closing)
	var failures []error
	if router := n.shards.router.Load(); router != nil {
		if err := router.Close(ctx); err != nil {
			failures = append(failures, err)
		}
	}
	if ctx.Err() != nil {
		return n.abandon(append(failures, errors.New("the shards are still open"))...)
	}
	closed := make(chan error, 1)
	go func() { closed <- n.closePorts(ctx, drained) }()
	select {
	case err := <-closed:
		failures = append(failures, err)
	case <-ctx.Done():
		return n.abandon(append(failures, errors.New("calls are still running"))...)
	}
	failures = append(failures, n.lock.Release())
	err := errors.Join(failures...)
	if err == nil {
		n.cfg.Logger.Info("stopped")
	}
	return err
}

// closePorts ends what is left of the servers and their connections. It waits for calls
// that are still running, however long.
func (n *Node) closePorts(ctx context.Context, drained <-chan struct{}) error {
	var failures []error
	linger, done := context.WithTimeout(ctx, lingerMax)
	defer done()
	forwarded, settled := context.WithTimeout(linger, forwardedMax)
	defer settled()
	wait(forwarded, drained)
	failures = append(failures, n.shards.disconnect())
	if !wait(linger, drained) {
		n.public.Stop()
		n.internal.Stop()
	}
	n.looking.Close()
	for _, server := range n.httpServers() {
		if err := server.Shutdown(linger); err != nil {
			failures = append(failures, server.Close())
		}
	}
	failures = append(failures, n.port.Close())
	<-drained
	n.serverWork.Wait()
	n.metrics.Wait()
	return errors.Join(failures...)
}

// abandon is the end of a stop that took too long. The directory stays locked, because
// something still uses it, until the process ends.
func (n *Node) abandon(failures ...error) error {
	go n.public.Stop()
	go n.internal.Stop()
	go n.shards.disconnect() //nolint:errcheck // nobody is left to be told
	go n.port.Close()        //nolint:errcheck // nor here
	for _, server := range n.httpServers() {
		go server.Close() //nolint:errcheck // nor here
	}
	return fmt.Errorf("the node did not stop within %v; what is left ends with the process: %w", n.cfg.StopTimeout, errors.Join(failures...))
}

// after returns a channel that is closed once wait has returned.
func after(wait func()) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		wait()
	}()
	return done
}

// wait reports whether done was closed before ctx ended.
func wait(ctx context.Context, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// nowhere is the listener of a node without a peer port.
type nowhere struct {
	closed chan struct{}
	once   sync.Once
}

func newNowhere() *nowhere { return &nowhere{closed: make(chan struct{})} }

func (n *nowhere) Accept() (net.Conn, error) {
	<-n.closed
	return nil, net.ErrClosed
}

func (n *nowhere) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

func (n *nowhere) Addr() net.Addr { return &net.TCPAddr{} }
