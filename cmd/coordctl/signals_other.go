//go:build !unix

package main

import "os"

// listen has nothing more to ask for: there is no run here.
func (s *signals) listen() {}

// keepPipe has nothing to do: there is no such signal.
func keepPipe() {}

// ends reports whether a signal asks for an end.
func ends(os.Signal) bool { return true }
