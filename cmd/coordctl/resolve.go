package main

import (
	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type resolveJSON struct {
	Outcome  string `json:"outcome"`
	Repeated bool   `json:"repeated"`
}

func (c *control) resolve() *cobra.Command {
	var (
		identity   identityFlags
		revision   uint64
		applied    bool
		notApplied bool
		note       string
		response   responseFlags
	)
	command := &cobra.Command{
		Use:   "resolve KEY --revision N --applied|--not-applied",
		Short: "Settle a record that is in doubt or lapsed",
		Long: `Settle a record that is in doubt or lapsed, as somebody who has found out.

--applied says that the attempt did act; the response flags say how it ended.
--not-applied says that it did not act and can no longer act. --revision is the one
that get showed: what has changed since is not settled.`,
		Example: `  coordctl get KEY                                     # in doubt, its owner, its revision
  coordctl resolve KEY --revision 12 --applied --code 201 --body "it is in the books"
  coordctl resolve KEY --revision 12 --not-applied --note "the machine had no network"`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := required(command, "revision"); err != nil {
				return err
			}
			if err := oneOf(command, "applied", "not-applied"); err != nil {
				return err
			}
			request := &coordinatorv1.ResolveRequest{Identity: identity.identity(arguments[0]), Revision: revision, Note: note}
			switch {
			case applied:
				settled, err := response.response(c, command)
				if err != nil {
					return err
				}
				request.Settlement = &coordinatorv1.ResolveRequest_Applied{Applied: settled}
			case notApplied:
				if name := response.given(command); name != "" {
					return usagef("--%s is for --applied only", name)
				}
				request.Settlement = &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}}
			default:
				return usagef("--applied and --not-applied take no value: give the one that is true")
			}
			answer, err := callCoordinator(command.Context(), c, c.timeout,
				coordinatorv1.CoordinatorServiceClient.Resolve, request)
			if err != nil {
				return err
			}
			shown := resolveJSON{Outcome: "resolved", Repeated: answer.GetRepeated()}
			return c.show(shown, [][]string{{"outcome", shown.Outcome}, {"repeated", yes(shown.Repeated)}})
		},
	}
	identity.add(command)
	response.add(command)
	flags := command.Flags()
	flags.Uint64Var(&revision, "revision", 0, "the revision that was looked at (required)")
	flags.BoolVar(&applied, "applied", false, "the attempt did act")
	flags.BoolVar(&notApplied, "not-applied", false, "the attempt did not act and can no longer act")
	flags.StringVar(&note, "note", "", "how that is known; of what is settled as not applied it is kept as the release reason")
	mayBeEmpty(flags, "note")
	return command
}
