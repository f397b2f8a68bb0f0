//go:build !unix

package main

import (
	"errors"
	"io"

	"github.com/atmostonce/coordinator/client"
)

// guardArgument is what no guard is started with here.
const guardArgument = "guard-process-group"

// guardError is a guard that could not be started.
type guardError struct{ error }

// errTooLate is why a command was not started although it was admitted.
var errTooLate = errors.New("too late")

var errUnsupported = errors.New("run needs process groups and signals, which this system does not have")

func supported() error { return errUnsupported }

func (r *runner) supervise(*client.Reservation, *capture) ending {
	return ending{unstarted: errUnsupported}
}

func runGuard(io.Reader, io.Writer) int { return exitOfRun }
