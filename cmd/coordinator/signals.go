package main

import (
	"io"
	"os"
	"os/signal"
	"syscall"
)

// stopSignals takes the signals that stop a node, from now on. A terminal that is closed sends
// SIGHUP to what was started in it. Who wants that to go on has it ignored from the start, as
// nohup does; SIGTERM and SIGINT stop a node however it was started.
func stopSignals() (received chan os.Signal) {
	received = make(chan os.Signal, 2)
	signal.Notify(received, syscall.SIGTERM, syscall.SIGINT)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(received, syscall.SIGHUP)
	}
	return received
}

// lastOutput is where a program writes that does nothing else any more, such as its help. Nobody
// may take it, and nobody listens for signals then: they end the process as they end others.
type lastOutput struct {
	io.Writer
	received chan os.Signal
}

// Write implements [io.Writer].
func (o lastOutput) Write(text []byte) (int, error) {
	signal.Stop(o.received)
	return o.Writer.Write(text)
}
