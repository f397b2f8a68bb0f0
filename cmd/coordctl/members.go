package main

import (
	"fmt"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

type membersJSON struct {
	ClusterID string       `json:"cluster_id"`
	Members   []memberJSON `json:"members"`
}

type memberJSON struct {
	NodeID        string `json:"node_id"`
	Incarnation   string `json:"incarnation,omitempty"`
	PeerAddress   string `json:"peer_address"`
	ClientAddress string `json:"client_address,omitempty"`
	Reachable     bool   `json:"reachable"`
	Self          bool   `json:"self"`
	Leads         uint32 `json:"leads"`
}

func (c *control) members() *cobra.Command {
	command := &cobra.Command{
		Use:   "members",
		Short: "Show the nodes, as the answering one sees them",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := callAdmin(command.Context(), c, c.timeout,
				coordinatorv1.AdminServiceClient.Members, &coordinatorv1.MembersRequest{})
			if err != nil {
				return err
			}
			shown := membersJSON{ClusterID: answer.GetClusterId(), Members: showMembers(answer.GetMembers())}
			return c.showTable(shown, membersHeading, memberRows(shown.Members))
		},
	}
	command.AddCommand(c.replaceMember())
	return command
}

var membersHeading = []string{"NODE", "CLIENT ADDRESS", "PEER ADDRESS", "REACHABLE", "LEADS", "INCARNATION"}

func showMembers(members []*coordinatorv1.Member) []memberJSON {
	shown := make([]memberJSON, 0, len(members))
	for _, m := range members {
		shown = append(shown, memberJSON{
			NodeID: m.GetNodeId(), Incarnation: m.GetIncarnation(), PeerAddress: m.GetPeerAddress(),
			ClientAddress: m.GetClientAddress(), Reachable: m.GetReachable(), Self: m.GetSelf(), Leads: m.GetLeads(),
		})
	}
	return shown
}

func memberRows(members []memberJSON) [][]string {
	rows := make([][]string, 0, len(members))
	for _, m := range members {
		reachable := "no"
		switch {
		case m.Self:
			reachable = "answers"
		case m.Reachable:
			reachable = "yes"
		}
		rows = append(rows, []string{
			m.NodeID, dash(m.ClientAddress), dash(m.PeerAddress), reachable, fmt.Sprint(m.Leads), dash(m.Incarnation),
		})
	}
	return rows
}
