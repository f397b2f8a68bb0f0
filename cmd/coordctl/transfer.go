package main

import (
	"context"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// nothingToDo is the outcome of a change that had been made already.
const nothingToDo = "nothing_to_do"

type transferJSON struct {
	Outcome string   `json:"outcome"`
	Shards  []uint32 `json:"shards"`
}

func (c *control) transferLeadership() *cobra.Command {
	var (
		shard uint32
		to    string
	)
	command := &cobra.Command{
		Use:   "transfer-leadership",
		Short: "Hand the leadership of shards over to another node",
		Long: `Hand the leadership of one shard over to another node, or without --shard that of
every shard that the first of --endpoints leads.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			request := &coordinatorv1.TransferLeadershipRequest{ToNode: to}
			endpoints := 1 // "every shard that it leads" is another call elsewhere
			if command.Flags().Changed("shard") {
				request.Shard = &shard
				endpoints = len(c.endpoints)
			}
			answer, err := callEndpoints(command.Context(), c, c.timeout, endpoints,
				func(ctx context.Context, connection *connection, options ...grpc.CallOption) (*coordinatorv1.TransferLeadershipResponse, error) {
					return connection.admin.TransferLeadership(ctx, request, options...)
				})
			if err != nil {
				return err
			}
			shown := transferJSON{Outcome: "transferred", Shards: append([]uint32{}, answer.GetShards()...)}
			if len(shown.Shards) == 0 {
				shown.Outcome = nothingToDo
			}
			return c.show(shown, [][]string{
				{"outcome", inWords(shown.Outcome)},
				{"shards", numbers(shown.Shards)},
			})
		},
	}
	command.Flags().Uint32Var(&shard, "shard", 0, "only this shard (default: every shard that the node leads)")
	command.Flags().StringVar(&to, "to", "", "node id of the new leader (default: any that is up to date)")
	return command
}
