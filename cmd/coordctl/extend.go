package main

import (
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type extendJSON struct {
	Outcome   string `json:"outcome"`
	Remaining string `json:"remaining"`
}

func (c *control) extend() *cobra.Command {
	var (
		identity   identityFlags
		token      string
		pendingTTL time.Duration
	)
	command := &cobra.Command{
		Use:   "extend KEY --token T",
		Short: "Ask for more time",
		Long: `Ask for more time: the reservation ends --pending-ttl from now on, and never earlier than
it did. A reservation can be held for 7 days in all (extend-span of the nodes).

Exit code 7 means that it is not held any more: stop what is done under it. Without an
answer (8) it ends when it would have ended.`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "token"); err != nil {
				return err
			}
			request := &coordinatorv1.ExtendRequest{
				Identity: identity.identity(arguments[0]), Token: token,
				PendingTtl: given(command, "pending-ttl", pendingTTL),
			}
			answer, err := callCoordinator(command.Context(), c, c.timeout,
				coordinatorv1.CoordinatorServiceClient.Extend, request)
			if err != nil {
				return err
			}
			shown := extendJSON{Outcome: "extended", Remaining: duration(answer.GetRemaining())}
			return c.show(shown, [][]string{{"outcome", shown.Outcome}, {"remaining", brief(shown.Remaining)}})
		},
	}
	identity.add(command)
	command.Flags().StringVar(&token, "token", "", "the token of the grant (required)")
	command.Flags().DurationVar(&pendingTTL, "pending-ttl", 0, "how long to hold it from now on, 100ms to 24h (default: the record's)")
	return command
}
