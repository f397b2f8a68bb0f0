package main

import (
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
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
answer (8) it ends when it would have ended. The result says for how long it holds from
now on, counted from when this was asked for.`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "token"); err != nil {
				return err
			}
			request := &coordinatorv1.ExtendRequest{
				Identity: identity.identity(arguments[0]), Token: token,
				PendingTtl: given(command, "pending-ttl", pendingTTL),
			}
			watch := newStopwatch()
			answer, err := callOwning(command.Context(), c, c.timeout, watch, coordinatorv1.CoordinatorServiceClient.Extend, request)
			if err != nil {
				return err
			}
			window := answer.GetRemaining().AsDuration()
			if window <= 0 {
				return notUnderstood("the coordinator gave an extension without a time")
			}
			left, took := watch.left(window)
			if left <= 0 {
				return lapsedOnTheWay(tooLate("extension", window, took)+": stop what is done under it", reason.Maybe)
			}
			shown := extendJSON{Outcome: "extended", Remaining: left.String()}
			return c.show(shown, [][]string{{"outcome", shown.Outcome}, {"remaining", brief(shown.Remaining)}})
		},
	}
	identity.add(command)
	command.Flags().StringVar(&token, "token", "", "the token of the grant (required)")
	command.Flags().DurationVar(&pendingTTL, "pending-ttl", 0, "how long to hold it from now on, 100ms to 24h (default: the record's)")
	return command
}
