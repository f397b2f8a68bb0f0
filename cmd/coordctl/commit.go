package main

import (
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type commitJSON struct {
	Outcome   string `json:"outcome"`
	Late      bool   `json:"late"`
	Repeated  bool   `json:"repeated"`
	Remaining string `json:"remaining"`
}

func (c *control) commit() *cobra.Command {
	var (
		identity  identityFlags
		token     string
		response  responseFlags
		retention time.Duration
	)
	command := &cobra.Command{
		Use:   "commit KEY --token T",
		Short: "Say that it is done, and store the response for every duplicate",
		Long: `Say that it is done, and store the response for every duplicate.

The same commit again is fine. Once it was sent, start nothing more under this token,
whatever the answer.`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "token"); err != nil {
				return err
			}
			request := &coordinatorv1.CommitRequest{
				Identity: identity.identity(arguments[0]), Token: token,
				Retention: given(command, "retention", retention),
			}
			var err error
			if request.Response, err = response.response(c, command); err != nil {
				return err
			}
			answer, err := callCoordinator(command.Context(), c, c.timeout,
				coordinatorv1.CoordinatorServiceClient.Commit, request)
			if err != nil {
				return err
			}
			shown := commitJSON{
				Outcome: "committed", Late: answer.GetLate(), Repeated: answer.GetRepeated(),
				Remaining: duration(answer.GetRemaining()),
			}
			return c.show(shown, [][]string{
				{"outcome", shown.Outcome},
				{"late", yes(shown.Late)},
				{"repeated", yes(shown.Repeated)},
				{"remaining", brief(shown.Remaining)},
			})
		},
	}
	identity.add(command)
	response.add(command)
	flags := command.Flags()
	flags.StringVar(&token, "token", "", "the token of the grant (required)")
	flags.DurationVar(&retention, "retention", 0, "how long the response is kept, 1s to 720h (default: the record's)")
	return command
}
