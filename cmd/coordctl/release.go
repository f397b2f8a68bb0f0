package main

import (
	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type releaseJSON struct {
	Outcome  string `json:"outcome"`
	Late     bool   `json:"late"`
	Repeated bool   `json:"repeated"`
}

func (c *control) release() *cobra.Command {
	var (
		identity identityFlags
		token    string
		why      string
	)
	command := &cobra.Command{
		Use:   "release KEY --token T",
		Short: "Say that nothing happened and nothing will, and free the key",
		Long: `Say that nothing happened and nothing will, and free the key at once.

Who does not know whether something happened must not release, but let the
reservation lapse.`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "token"); err != nil {
				return err
			}
			request := &coordinatorv1.ReleaseRequest{Identity: identity.identity(arguments[0]), Token: token, Reason: why}
			answer, err := callCoordinator(command.Context(), c, c.timeout,
				coordinatorv1.CoordinatorServiceClient.Release, request)
			if err != nil {
				return err
			}
			shown := releaseJSON{Outcome: "released", Late: answer.GetLate(), Repeated: answer.GetRepeated()}
			return c.show(shown, [][]string{
				{"outcome", shown.Outcome},
				{"late", yes(shown.Late)},
				{"repeated", yes(shown.Repeated)},
			})
		},
	}
	identity.add(command)
	command.Flags().StringVar(&token, "token", "", "the token of the grant (required)")
	command.Flags().StringVar(&why, "reason", "", "why nothing happened; the next owner is told")
	mayBeEmpty(command.Flags(), "reason")
	return command
}
