package fault

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/atmostonce/coordinator/test/process"
)

// saidWithin is how soon a node says what is the matter.
const saidWithin = 30 * time.Second

// wiped loses a node's directory, starts it under its old id and, once it has said that it
// takes part in nothing and what to do, does that.
func wiped(ctx context.Context, sc *scene) error {
	n := sc.c.Nodes[sc.draw(3)]
	if err := n.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(n.Dir); err != nil {
		return err
	}
	before := len(n.Output())
	if err := n.Start("--join-wait", "5m"); err != nil {
		return err
	}
	sc.did("directory wiped")
	advice := "coordctl members replace " + n.Name
	if err := saidSince(n, before, advice); err != nil {
		return err
	}
	// It votes for nobody and stores nothing, however long it is there.
	sc.sleep(ctx, 500*time.Millisecond, 2*time.Second)
	if _, err := os.Stat(n.Dir + "/shards"); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s has made shards before it was told to: %w", n.Name, err)
	}
	var kept []string
	for _, other := range sc.c.Nodes {
		if other != n {
			kept = append(kept, other.Client)
		}
	}
	result, err := sc.c.Programs.Control(time.Minute, kept, strings.Fields(strings.TrimPrefix(advice, "coordctl "))...)
	if err != nil {
		return err
	}
	if result.Code != 0 {
		return fmt.Errorf("%s ended with %d: %s", advice, result.Code, result.Stderr)
	}
	return n.Serving(servesWithin)
}

// saidSince waits until a node has said something after what it had said before.
func saidSince(n *process.Node, before int, text string) error {
	for until := time.Now().Add(saidWithin); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		if strings.Contains(n.Output()[before:], text) {
			return nil
		}
	}
	return fmt.Errorf("%s has not said %q within %v", n.Name, text, saidWithin)
}

// twice starts a second process on the directory of each node: it ends with one line that
// names the directory, and the first goes on.
func twice(_ context.Context, sc *scene) error {
	for _, n := range sc.c.Nodes {
		result, err := process.Run(saidWithin, sc.c.Programs.Coordinator, n.Arguments()...)
		if err != nil {
			return err
		}
		sc.did("second process on a directory")
		line := strings.TrimSpace(result.Stderr)
		if result.Code == 0 || !strings.Contains(line, n.Dir) || strings.Contains(line, "\n") {
			return fmt.Errorf("a second process on the directory of %s ended with %d after %v: %s", n.Name, result.Code, result.Took, result.Stderr)
		}
	}
	return nil
}

// farBehind keeps a follower away until its leader's log does not reach back to it, and
// lets it come back under load. The nodes must have a short log.
func farBehind(away func(ctx context.Context, sc *scene, n *process.Node) error) func(context.Context, *scene) error {
	return func(ctx context.Context, sc *scene) error {
		_, others, err := sc.leader()
		if err != nil {
			return err
		}
		n := others[0]
		before := len(n.Output())
		if err := away(ctx, sc, n); err != nil {
			return err
		}
		sc.did("follower far behind")
		return saidSince(n, before, installedText)
	}
}

// installedText is what a replica says, to who debugs, once a state that it was sent has
// replaced its own.
const installedText = "Installed remote snapshot"

func awayKilled(ctx context.Context, sc *scene, n *process.Node) error {
	if err := n.Kill(); err != nil {
		return err
	}
	sc.sleep(ctx, 4*time.Second, 6*time.Second)
	return n.Start()
}

func awayPaused(ctx context.Context, sc *scene, n *process.Node) error {
	if err := n.Pause(); err != nil {
		return err
	}
	sc.sleep(ctx, 4*time.Second, 6*time.Second)
	return n.Resume()
}

func awayCut(ctx context.Context, sc *scene, n *process.Node) error {
	for _, other := range sc.c.Nodes {
		if other != n {
			sc.links.cut(both(n.Name, other.Name)...)
		}
	}
	sc.sleep(ctx, 4*time.Second, 6*time.Second)
	sc.links.heal()
	return nil
}
