package fault

import (
	"context"
	"fmt"
	"strings"

	"github.com/atmostonce/coordinator/test/process"
)

// nextEntry makes a program that writes log entries of the next version, and reads those
// of today's too, as one to come would.
func nextEntry() []process.Edit {
	return []process.Edit{
		{File: "internal/raftfsm/entry.go", Old: "const entryVersion = 1", New: "const entryVersion = 2"},
		{File: "internal/raftfsm/entry.go", Old: "if src[0] != entryVersion {", New: "if src[0] != entryVersion && src[0] != 1 {"},
	}
}

// upgraded starts all three nodes with a program that writes another version of entries:
// they replay the log that they have.
func upgraded(next string) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		for _, n := range sc.c.Nodes {
			if err := n.Kill(); err != nil {
				return err
			}
		}
		for _, n := range sc.c.Nodes {
			n.Use(next)
			if err := n.Start(); err != nil {
				return err
			}
		}
		sc.did("log of the version before")
		return sc.c.Serving(servesWithin)
	}
}

// downgraded starts one node with a program that does not know the entries that there are:
// it ends by itself and says why, the others go on, and nothing of it is lost.
func downgraded(before, next string) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		_, others, err := sc.leader()
		if err != nil {
			return err
		}
		n := others[0]
		if err := n.Kill(); err != nil {
			return err
		}
		n.Use(before)
		said := len(n.Output())
		if err := n.Start(); err != nil {
			return err
		}
		sc.did("log of a version to come")
		code, err := n.Wait(saidWithin)
		if err != nil {
			return fmt.Errorf("it goes on with a log that it does not know: %w", err)
		}
		line := lastLine(n.Output()[said:])
		if code != 1 || !strings.Contains(line, "version 2, this program knows version 1") {
			return fmt.Errorf("%s ended with %d: %s", n.Name, code, line)
		}
		sc.t.Logf("%s ended with %d: %s", n.Name, code, line)
		n.Use(next)
		if err := n.Start(); err != nil {
			return err
		}
		return n.Serving(servesWithin)
	}
}
