package main

import (
	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type purgeJSON struct {
	Outcome string `json:"outcome"`
	Existed bool   `json:"existed"`
}

func (c *control) purge() *cobra.Command {
	var (
		identity identityFlags
		revision uint64
		fence    uint64
		force    bool
	)
	command := &cobra.Command{
		Use:   "purge KEY --revision N|--fence N",
		Short: "Delete a record",
		Long: `Delete a record. One that is pending or in doubt is deleted with --force only.

--force gives up "never admit twice" for this key: the owner of the purged attempt may
still be at work when the next one is admitted. With it a pending record may be named
by its fence, since its owner's extends change the revision.`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := oneOf(command, "revision", "fence"); err != nil {
				return err
			}
			request := &coordinatorv1.PurgeRequest{Identity: identity.identity(arguments[0]), Force: force}
			if command.Flags().Changed("fence") {
				request.Target = &coordinatorv1.PurgeRequest_Fence{Fence: fence}
			} else {
				request.Target = &coordinatorv1.PurgeRequest_Revision{Revision: revision}
			}
			answer, err := callAdmin(command.Context(), c, c.timeout,
				coordinatorv1.AdminServiceClient.Purge, request)
			if err != nil {
				return err
			}
			shown := purgeJSON{Outcome: "purged", Existed: answer.GetExisted()}
			existed := "yes"
			if !shown.Existed {
				existed = "no"
			}
			return c.show(shown, [][]string{{"outcome", shown.Outcome}, {"existed", existed}})
		},
	}
	identity.add(command)
	flags := command.Flags()
	flags.Uint64Var(&revision, "revision", 0, "the revision that was looked at")
	flags.Uint64Var(&fence, "fence", 0, "the fence of a pending record; with --force only")
	flags.BoolVar(&force, "force", false, "delete even what is pending or in doubt")
	return command
}
