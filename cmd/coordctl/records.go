package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// recordsPageMax is how many records one call may ask for.
const recordsPageMax = 1000

var recordsHeading = []string{"STATE", "ATTEMPT", "REVISION", "AGE", "REMAINING", "NAMESPACE", "PRINCIPAL", "OPERATION", "KEY"}

func (c *control) records() *cobra.Command {
	var (
		namespace string
		state     string
		operation string
		limit     uint64
	)
	command := &cobra.Command{
		Use:   "records",
		Short: "List records",
		Long: `List records, in no promised order, page by page as they arrive. With -o json each
line is one record; a table is aligned page by page. --timeout is for each page.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			request := &coordinatorv1.ListRecordsRequest{Namespace: namespace}
			if command.Flags().Changed("operation") {
				request.Operation = &operation
			}
			var err error
			if request.State, err = parseState(state); err != nil {
				return err
			}
			return c.runRecords(command.Context(), request, limit)
		},
	}
	flags := command.Flags()
	flags.StringVar(&namespace, "namespace", "", "only of this namespace (default: of every)")
	flags.StringVar(&state, "state", "", "only in this state: pending, lapsed, in_doubt, committed or released (default: in every)")
	flags.StringVar(&operation, "operation", "", "only of this operation; '' for those with none (default: of every)")
	mayBeEmpty(flags, "operation")
	flags.Uint64Var(&limit, "limit", 0, "how many at most (default 0: all)")
	return command
}

func (c *control) runRecords(ctx context.Context, request *coordinatorv1.ListRecordsRequest, limit uint64) error {
	heading := recordsHeading
	for shown := uint64(0); ; {
		request.PageSize = recordsPageMax
		if limit > 0 {
			request.PageSize = uint32(min(recordsPageMax, limit-shown))
		}
		page, err := callAdmin(ctx, c, c.timeout,
			coordinatorv1.AdminServiceClient.ListRecords, request)
		if err != nil {
			return err
		}
		last := page.GetNextPageToken() == ""
		if len(page.GetRecords()) > 0 || last {
			if err := c.showRecords(page.GetRecords(), heading); err != nil {
				return err
			}
			heading = nil
		}
		shown += uint64(len(page.GetRecords()))
		if last || limit > 0 && shown >= limit {
			return nil
		}
		request.PageToken = page.GetNextPageToken()
	}
}

// showRecords shows one page.
func (c *control) showRecords(records []*coordinatorv1.Record, heading []string) error {
	if c.output == "json" {
		for _, record := range records {
			if err := c.wrote(writeJSON(c.stdout, showRecord(record, false))); err != nil {
				return err
			}
		}
		return nil
	}
	rows := make([][]string, 0, len(records))
	for _, r := range records {
		id := r.GetIdentity()
		rows = append(rows, []string{
			enum(r.GetState(), "STATE_"), fmt.Sprint(r.GetAttempt()), fmt.Sprint(r.GetRevision()),
			brief(duration(r.GetAge())), dash(brief(duration(r.GetRemaining()))), text(id.GetNamespace()),
			dash(text(id.GetPrincipal())), dash(text(id.GetOperation())), text(id.GetKey()),
		})
	}
	return c.wrote(writeTable(c.stdout, heading, rows))
}

// dash keeps an empty cell visible in a table of rows.
func dash(cell string) string {
	if cell == "" {
		return "-"
	}
	return cell
}

func parseState(text string) (coordinatorv1.State, error) {
	if text == "" {
		return coordinatorv1.State_STATE_UNSPECIFIED, nil
	}
	name := "STATE_" + strings.ToUpper(strings.ReplaceAll(text, "-", "_"))
	if value, ok := coordinatorv1.State_value[name]; ok && value != 0 {
		return coordinatorv1.State(value), nil
	}
	return 0, usagef("--state is %q, it must be pending, lapsed, in_doubt, committed or released", text)
}

// noArguments is for commands that take flags only.
func noArguments(_ *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		return usagef("no argument is expected, there is %q", arguments[0])
	}
	return nil
}
