package main

import (
	"fmt"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

type statusJSON struct {
	ClusterID        string       `json:"cluster_id"`
	NodeID           string       `json:"node_id"`
	Version          string       `json:"version"`
	Shards           uint32       `json:"shards"`
	ShardsWithLeader uint32       `json:"shards_with_leader"`
	Healthy          bool         `json:"healthy"`
	Problems         []string     `json:"problems"`
	Members          []memberJSON `json:"members"`
}

func (c *control) status() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show whether the cluster is well, as the answering node sees it",
		Long: `Show whether the cluster is well, as the answering node sees it. The exit code is 0
if it is, and 11 if it is not: the result then names the problems. No answer at all is 8.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := callAdmin(command.Context(), c, c.timeout,
				coordinatorv1.AdminServiceClient.ClusterStatus, &coordinatorv1.ClusterStatusRequest{})
			if err != nil {
				return err
			}
			shown := statusJSON{
				ClusterID: answer.GetClusterId(), NodeID: answer.GetNodeId(), Version: answer.GetVersion(),
				Shards: answer.GetShards(), ShardsWithLeader: answer.GetShardsWithLeader(),
				Healthy: answer.GetHealthy(), Problems: append([]string{}, answer.GetProblems()...),
				Members: showMembers(answer.GetMembers()),
			}
			code := reason.ExitDone
			if !shown.Healthy {
				code = reason.ExitUnhealthy
			}
			return outcome(c.show(shown, statusRows(shown)), code)
		},
	}
}

func statusRows(s statusJSON) [][]string {
	healthy := "yes"
	if !s.Healthy {
		healthy = "no"
	}
	rows := [][]string{
		{"healthy", healthy},
		{"cluster", s.ClusterID},
		{"answering node", s.NodeID},
		{"version", s.Version},
		{"shards", fmt.Sprintf("%d, %d with a leader", s.Shards, s.ShardsWithLeader)},
	}
	for _, m := range s.Members {
		rows = append(rows, []string{"member", fmt.Sprintf("%s, clients at %s, leads %d", m.NodeID, dash(m.ClientAddress), m.Leads)})
	}
	for _, problem := range s.Problems {
		rows = append(rows, []string{"problem", problem})
	}
	return rows
}
