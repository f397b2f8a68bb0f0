package raftfsm

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/hashicorp/raft"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		err  error
		want Fate
	}{
		{nil, Committed},
		{raft.ErrEnqueueTimeout, NotApplied},
		{raft.ErrNotLeader, NotApplied},
		{raft.ErrLeadershipTransferInProgress, NotApplied},
		{raft.ErrLeadershipLost, Unknown},
		{raft.ErrRaftShutdown, Unknown},
		{raft.ErrAbortedByRestore, Unknown},
		{raft.ErrTransportShutdown, Unknown},
		{raft.ErrLeader, Unknown},
		{raft.ErrNotVoter, Unknown},
		{raft.ErrCantBootstrap, Unknown},
		{raft.ErrNothingNewToSnapshot, Unknown},
		{raft.ErrUnsupportedProtocol, Unknown},
		{errLogClosed, Unknown},
		{io.ErrShortWrite, Unknown},
		{errors.New("anything else"), Unknown},
	} {
		if got := Classify(c.err); got != c.want {
			t.Errorf("%v: %v, want %v", c.err, got, c.want)
		}
		if c.err == nil {
			continue
		}
		if got := Classify(fmt.Errorf("wrapped: %w", c.err)); got != c.want {
			t.Errorf("%v, wrapped: %v, want %v", c.err, got, c.want)
		}
	}
}
