package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

func (c *control) shard() *cobra.Command {
	var local bool
	command := &cobra.Command{
		Use:   "shard N",
		Short: "Show one shard and its replicas",
		Args: func(_ *cobra.Command, arguments []string) error {
			if len(arguments) != 1 {
				return usagef("one number of a shard is needed, there are %d arguments", len(arguments))
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			number, err := strconv.ParseUint(arguments[0], 10, 32)
			if err != nil {
				return usagef("%q is not the number of a shard", arguments[0])
			}
			request := &coordinatorv1.GetShardRequest{Shard: uint32(number), Local: local}
			answer, err := callAdmin(command.Context(), c, c.timeout,
				coordinatorv1.AdminServiceClient.GetShard, request)
			if err != nil {
				return err
			}
			shown := showShard(answer.GetShard(), time.Now())
			if shown.Leader == "" {
				c.explainNoLeader("the shard")
			}
			return c.show(shown, shardRows(shown))
		},
	}
	command.Flags().BoolVar(&local, "local", false, "as the node that is asked sees it, not as its leader does")
	return command
}

func shardRows(s shardJSON) [][]string {
	rows := [][]string{
		{"shard", fmt.Sprint(s.Shard)},
		{"leader", dash(s.Leader)},
		{"leader address", s.LeaderAddress},
		{"term", fmt.Sprint(s.Term)},
		{"applied index", fmt.Sprint(s.AppliedIndex)},
		{"state digest", s.StateDigest},
		{"commit index", fmt.Sprint(s.CommitIndex)},
		{"last log index", fmt.Sprint(s.LastLogIndex)},
		{"pending", fmt.Sprint(s.Records.Pending)},
		{"lapsed", fmt.Sprint(s.Records.Lapsed)},
		{"in doubt", fmt.Sprint(s.Records.InDoubt)},
		{"committed", fmt.Sprint(s.Records.Committed)},
		{"released", fmt.Sprint(s.Records.Released)},
		{"tombstones", fmt.Sprint(s.Records.Tombstones)},
		{"next alarm", s.NextAlarm},
		{"next alarm in", brief(s.NextAlarmIn)},
		{"log", size(s.LogBytes)},
		{"state file", size(s.StateFileBytes)},
		{"mailbox", fmt.Sprintf("%d commands, %s", s.MailboxDepth, size(s.MailboxBytes))},
		{"waiters", fmt.Sprint(s.Waiters)},
		{"clock", brief(s.Clock)},
	}
	for _, r := range s.Replicas {
		vote := "voter"
		if !r.Voter {
			vote = "no voter"
		}
		text := fmt.Sprintf("%s, %s, has %d, %d behind", dash(r.Address), vote, r.MatchIndex, r.Behind)
		if r.LastContact != "" {
			text += ", heard from " + brief(r.LastContact) + " ago"
		}
		rows = append(rows, []string{"replica " + r.NodeID, text})
	}
	return rows
}
