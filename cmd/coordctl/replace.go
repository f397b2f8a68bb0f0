package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// replaceWithin is how long a replacement may take where --timeout says nothing: it
// changes every shard, one after the other.
const replaceWithin = time.Minute

type replaceJSON struct {
	Outcome     string   `json:"outcome"`
	Incarnation string   `json:"incarnation"`
	Shards      []uint32 `json:"shards"`
}

func (c *control) replaceMember() *cobra.Command {
	return &cobra.Command{
		Use:   "replace NODE",
		Short: "Put a node that lost its data directory back into the cluster",
		Long: `Put a node that lost its data directory back into the cluster.

A node that is only stopped, or hangs, needs no replacement: start it as it was. Only if
its data directory is lost, start it with an empty one, under its old name: it says that
it is not a member, and waits. Then, with --endpoints naming nodes that kept theirs,
in every shard the incarnation that was lost is removed and the new one is added; its
records come from the others. May be run again until it succeeds. Once one of those
nodes has answered it has a minute, unless --timeout says otherwise, and changes one
shard after the other. It exits with 8 where none does, or NODE does not.

What the lost incarnation stored is given up: never start it again.`,
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return usagef("members replace takes the name of one node")
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			within := c.timeout
			if !command.Flags().Changed("timeout") {
				within = replaceWithin
			}
			answer, err := c.replaceBy(command.Context(), within, arguments[0])
			if err != nil {
				return err
			}
			shown := replaceJSON{Outcome: "replaced", Incarnation: answer.GetIncarnation(), Shards: append([]uint32{}, answer.GetShards()...)}
			if len(shown.Shards) == 0 {
				shown.Outcome = nothingToDo
			}
			return c.show(shown, [][]string{
				{"outcome", inWords(shown.Outcome)},
				{"incarnation", shown.Incarnation},
				{"shards", numbers(shown.Shards)},
			})
		},
	}
}

// replaceBy asks those that kept their data directories for the replacement. Whether there is
// one of them among the endpoints is known in the time of any other call.
func (c *control) replaceBy(ctx context.Context, within time.Duration, node string) (*coordinatorv1.ReplaceMemberResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	_, err := call(ctx, c, c.timeout, func(ctx context.Context, to *connection, options ...grpc.CallOption) (*coordinatorv1.MembersResponse, error) {
		return to.admin.Members(ctx, &coordinatorv1.MembersRequest{}, options...)
	})
	if err != nil {
		return nil, unasked(err)
	}
	away := false
	answer, err := call(ctx, c, within, func(ctx context.Context, to *connection, options ...grpc.CallOption) (*coordinatorv1.ReplaceMemberResponse, error) {
		answer, err := to.admin.ReplaceMember(ctx, &coordinatorv1.ReplaceMemberRequest{NodeId: node}, options...)
		away = reason.Blames(err, reason.NodeDoesNotAnswer)
		return answer, err
	})
	if refused := (callError{}); away && errors.As(err, &refused) {
		refused.exit = reason.ExitUnavailable // it was named rightly
		err = refused
	}
	return answer, err
}

// unasked is the error of a replacement that nobody was asked for, since no endpoint is one of
// those that can be.
func unasked(err error) error {
	var failed callError
	if !errors.As(err, &failed) {
		return err
	}
	failed.failure.Applied = reason.No
	if failed.failure.ExitCode == reason.ExitUnavailable && failed.failure.Code != codes.Canceled {
		failed.failure.Message += "; name nodes that kept their data directories with --endpoints"
	}
	return failed
}
