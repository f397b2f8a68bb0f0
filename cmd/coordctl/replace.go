package main

import (
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
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
records come from the others. May be run again until it succeeds. It has a minute
unless --timeout says otherwise, and changes one shard after the other.

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
			answer, err := callAdmin(command.Context(), c, within,
				coordinatorv1.AdminServiceClient.ReplaceMember, &coordinatorv1.ReplaceMemberRequest{NodeId: arguments[0]})
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
