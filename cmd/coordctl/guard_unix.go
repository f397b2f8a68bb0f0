//go:build unix

package main

import (
	"encoding/binary"
	"io"
	"os"
	"syscall"
	"time"
)

// guardArgument makes this program a guard.
const guardArgument = "guard-process-group"

// guardReady is what a guard says once it ignores the signals of its group.
const guardReady = "ready\n"

// runGuard is the guard of a command that `coordctl run` runs: the leader of the process
// group that the command is in. It reads from a pipe that only that coordctl holds the other
// end of: the moments on [sharedClock] at which the ownership ends, 8 bytes each, in
// nanoseconds. When the pipe is closed coordctl is gone, however it went; when a moment
// passes without a later one having come, coordctl stands still. Either way whoever is in
// the group must not go on, and is killed with the guard itself. While the guard is there no
// other group can have its id. When the command has ended coordctl kills it, and it alone.
func runGuard(from io.Reader, to io.Writer) int {
	if syscall.Getpgrp() != os.Getpid() {
		return exitOfRun // not started by us: this is somebody else's group
	}
	ignoreSignals()
	if _, err := io.WriteString(to, guardReady); err != nil {
		return exitOfRun
	}
	told := make(chan time.Duration)
	go func() {
		defer close(told)
		for message := make([]byte, 8); ; {
			if _, err := io.ReadFull(from, message); err != nil {
				return
			}
			told <- time.Duration(binary.BigEndian.Uint64(message))
		}
	}()
	var until time.Duration // 0: not told yet
	for {
		look := lookEvery
		if now, ok := sharedClock(); ok && until > 0 {
			if now >= until {
				return killGroup()
			}
			look = min(look, until-now)
		}
		select {
		case moment, ok := <-told:
			if !ok {
				return killGroup()
			}
			until = moment
		case <-time.After(look):
		}
	}
}

// killGroup kills everybody in this process's group, itself included.
func killGroup() int {
	_ = syscall.Kill(0, syscall.SIGKILL)
	return exitOfRun // not reached
}
