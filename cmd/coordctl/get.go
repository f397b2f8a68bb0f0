package main

import (
	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

func (c *control) get() *cobra.Command {
	var (
		identity identityFlags
		body     bool
	)
	command := &cobra.Command{
		Use:   "get KEY",
		Short: "Show a record, with the revision that resolve and purge name",
		Long: `Show a record, with the revision that resolve and purge name. It changes nothing.

A key that was never used, or whose time is over, has no record: RESERVATION_NOT_FOUND,
exit code 7. Nor is there one under another --namespace, --principal or --operation than
the key was reserved under.`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			request := &coordinatorv1.GetRequest{Identity: identity.identity(arguments[0]), IncludeBody: body}
			answer, err := callCoordinator(command.Context(), c, c.timeout,
				coordinatorv1.CoordinatorServiceClient.Get, request)
			if err != nil {
				return err
			}
			shown := showRecord(answer.GetRecord(), body)
			return c.show(shown, recordRows(shown))
		},
	}
	identity.add(command)
	command.Flags().BoolVar(&body, "body", false, "show the body of the response too")
	return command
}
