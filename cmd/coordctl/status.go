package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/metakey"
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
		Long: `Show whether the cluster is well, as the answering node sees it: the first that
belongs to one. The exit code is 0 if it is, and 11 if it is not: the result then names the
problems, among them an endpoint at which another cluster answers, or a node that waits for
its cluster. No answer at all is 8.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := callAdmin(command.Context(), c, c.timeout,
				coordinatorv1.AdminServiceClient.ClusterStatus, &coordinatorv1.ClusterStatusRequest{})
			if err != nil {
				return err
			}
			if answer.GetClusterId() == "" {
				// It waits for its cluster. What it says of that is of use where nobody knows more.
				if member := c.memberStatus(command.Context()); member != nil {
					answer = member
				}
			}
			shown := statusJSON{
				ClusterID: answer.GetClusterId(), NodeID: answer.GetNodeId(), Version: answer.GetVersion(),
				Shards: answer.GetShards(), ShardsWithLeader: answer.GetShardsWithLeader(),
				Healthy: answer.GetHealthy(), Problems: append([]string{}, answer.GetProblems()...),
				Members: showMembers(answer.GetMembers()),
			}
			if shown.ClusterID != "" { // to a node of none every other one is right
				if others := c.otherClusters(command.Context(), shown.ClusterID); len(others) > 0 {
					shown.Healthy, shown.Problems = false, append(shown.Problems, others...)
				}
			}
			code := reason.ExitDone
			if !shown.Healthy {
				code = reason.ExitUnhealthy
			}
			return outcome(c.show(shown, statusRows(shown)), code)
		},
	}
}

// memberWithin is how long the endpoints have to tell the status: each asks other nodes for it, and
// waits a second for one that does not answer.
const memberWithin = 3 * time.Second

// memberStatus returns the status as the first endpoint sees it whose node belongs to a cluster;
// nil: none has told it in time.
func (c *control) memberStatus(ctx context.Context) *coordinatorv1.ClusterStatusResponse {
	ctx, cancel := context.WithTimeout(ctx, min(c.timeout, memberWithin))
	defer cancel()
	answers := make([]*coordinatorv1.ClusterStatusResponse, len(c.endpoints))
	c.askAll(func(i int, connection *connection) {
		answers[i], _ = connection.admin.ClusterStatus(ctx, &coordinatorv1.ClusterStatusRequest{})
	})
	for _, answer := range answers {
		if answer.GetClusterId() != "" {
			return answer
		}
	}
	return nil
}

// othersWithin is how long the other endpoints have to say that they are not of the cluster, which
// they do before they ask anybody.
const othersWithin = time.Second

// otherClusters says which endpoints are of another cluster than the one that has answered, and
// which are of none yet. Those that do not answer in time are the cluster's own business.
func (c *control) otherClusters(ctx context.Context, id string) (problems []string) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, metakey.Cluster, id), othersWithin)
	defer cancel()
	found := make([]string, len(c.endpoints))
	c.askAll(func(i int, connection *connection) {
		var header metadata.MD
		_, err := connection.admin.ClusterStatus(ctx, &coordinatorv1.ClusterStatusRequest{}, grpc.Header(&header))
		switch other := metakey.Foreign(header, id); {
		case other != "":
			found[i] = fmt.Sprintf("At %s another cluster answers, %s: what is done in one is granted in the other once more.",
				connection.endpoint, other)
		case err != nil && len(header.Get(metakey.Cluster)) > 0: // it has said so, and named none
			found[i] = fmt.Sprintf("At %s a node answers that belongs to no cluster yet; `coordctl --endpoints %s status` says what it waits for.",
				connection.endpoint, connection.endpoint)
		}
	})
	return slices.DeleteFunc(found, func(problem string) bool { return problem == "" })
}

// askAll asks all endpoints at a time, and returns when each is done.
func (c *control) askAll(ask func(i int, connection *connection)) {
	var asking sync.WaitGroup
	for i := range c.endpoints {
		connection, err := c.connect(i)
		if err != nil {
			continue // as no call would come through
		}
		asking.Go(func() { ask(i, connection) })
	}
	asking.Wait()
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
