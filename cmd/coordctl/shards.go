package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// shardJSON is a shard as shards and shard show it.
type shardJSON struct {
	Shard          uint32        `json:"shard"`
	Leader         string        `json:"leader"`
	LeaderAddress  string        `json:"leader_address,omitempty"`
	Term           uint64        `json:"term"`
	AppliedIndex   uint64        `json:"applied_index"`
	StateDigest    string        `json:"state_digest"`
	CommitIndex    uint64        `json:"commit_index"`
	LastLogIndex   uint64        `json:"last_log_index"`
	Replicas       []replicaJSON `json:"replicas"`
	Records        countsJSON    `json:"records"`
	NextAlarm      string        `json:"next_alarm,omitempty"` // by this machine's wall clock
	NextAlarmIn    string        `json:"next_alarm_in,omitempty"`
	LogBytes       uint64        `json:"log_bytes"`
	StateFileBytes uint64        `json:"state_file_bytes"`
	MailboxDepth   uint32        `json:"mailbox_depth"`
	MailboxBytes   uint64        `json:"mailbox_bytes"`
	Waiters        uint32        `json:"waiters"`
	Clock          string        `json:"clock"`
}

type replicaJSON struct {
	NodeID      string `json:"node_id"`
	Address     string `json:"address"`
	MatchIndex  uint64 `json:"match_index"`
	Behind      uint64 `json:"behind"`
	Voter       bool   `json:"voter"`
	LastContact string `json:"last_contact,omitempty"`
}

type countsJSON struct {
	Pending    uint64 `json:"pending"`
	Lapsed     uint64 `json:"lapsed"`
	InDoubt    uint64 `json:"in_doubt"`
	Committed  uint64 `json:"committed"`
	Released   uint64 `json:"released"`
	Tombstones uint64 `json:"tombstones"`
}

var shardsHeading = []string{
	"SHARD", "LEADER", "TERM", "APPLIED", "BEHIND", "PENDING", "LAPSED", "IN DOUBT", "COMMITTED", "RELEASED",
	"TOMBSTONES", "NEXT ALARM", "IN", "LOG", "STATE FILE", "MAILBOX", "WAITERS",
}

func (c *control) shards() *cobra.Command {
	return &cobra.Command{
		Use:   "shards",
		Short: "Show every shard: its leader, its followers, its records, its next alarm",
		Long: `Show every shard: its leader, its followers, its records, its next alarm.

In the table - stands for none: no leader that the answering node knows, no follower, no
record with a deadline. BEHIND is how many log entries each follower lacks; ? where only
the leader could say.`,
		Args: noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			answer, err := callAdmin(command.Context(), c, c.timeout,
				coordinatorv1.AdminServiceClient.ListShards, &coordinatorv1.ListShardsRequest{})
			if err != nil {
				return err
			}
			now := time.Now()
			shown := make([]shardJSON, 0, len(answer.GetShards()))
			rows := make([][]string, 0, len(answer.GetShards()))
			leaderless := 0
			for _, s := range answer.GetShards() {
				one := showShard(s, now)
				if one.Leader == "" {
					leaderless++
				}
				shown = append(shown, one)
				rows = append(rows, []string{
					fmt.Sprint(one.Shard), dash(one.Leader), fmt.Sprint(one.Term), fmt.Sprint(one.AppliedIndex), behind(one),
					fmt.Sprint(one.Records.Pending), fmt.Sprint(one.Records.Lapsed), fmt.Sprint(one.Records.InDoubt),
					fmt.Sprint(one.Records.Committed), fmt.Sprint(one.Records.Released), fmt.Sprint(one.Records.Tombstones),
					dash(one.NextAlarm), dash(brief(one.NextAlarmIn)), size(one.LogBytes), size(one.StateFileBytes),
					fmt.Sprint(one.MailboxDepth), fmt.Sprint(one.Waiters),
				})
			}
			if leaderless > 0 {
				c.explainNoLeader(fmt.Sprintf("%d of %d shards", leaderless, len(shown)))
			}
			return c.showTable(map[string][]shardJSON{"shards": shown}, shardsHeading, rows)
		},
	}
}

// explainNoLeader says on stderr what a table means in which shards have no leader.
func (c *control) explainNoLeader(which string) {
	if c.output == "json" {
		return
	}
	c.note("the answering node knows no leader of " + which + ", and shows what it has itself: calls on keys of such a shard " +
		"wait, and then fail with NO_LEADER. After a start that passes within seconds; if it does not, `coordctl status` says what is wrong")
}

func showShard(s *coordinatorv1.Shard, now time.Time) shardJSON {
	shown := shardJSON{
		Shard: s.GetShard(), Leader: s.GetLeader(), LeaderAddress: s.GetLeaderAddress(), Term: s.GetTerm(),
		AppliedIndex: s.GetAppliedIndex(), StateDigest: fmt.Sprintf("%016x", s.GetStateDigest()),
		CommitIndex: s.GetCommitIndex(), LastLogIndex: s.GetLastLogIndex(),
		Replicas: []replicaJSON{},
		Records: countsJSON{
			Pending: s.GetRecords().GetPending(), Lapsed: s.GetRecords().GetLapsed(), InDoubt: s.GetRecords().GetInDoubt(),
			Committed: s.GetRecords().GetCommitted(), Released: s.GetRecords().GetReleased(), Tombstones: s.GetRecords().GetTombstones(),
		},
		NextAlarm:   alarmMoment(s.GetNextAlarmIn(), now),
		NextAlarmIn: duration(s.GetNextAlarmIn()),
		LogBytes:    s.GetLogBytes(), StateFileBytes: s.GetStateFileBytes(),
		MailboxDepth: s.GetMailboxDepth(), MailboxBytes: s.GetMailboxBytes(), Waiters: s.GetWaiters(),
		Clock: duration(s.GetClock()),
	}
	for _, r := range s.GetReplicas() {
		shown.Replicas = append(shown.Replicas, replicaJSON{
			NodeID: r.GetNodeId(), Address: r.GetAddress(), MatchIndex: r.GetMatchIndex(), Behind: r.GetBehind(),
			Voter: r.GetVoter(), LastContact: duration(r.GetLastContact()),
		})
	}
	return shown
}

// alarmMoment is about when an alarm is due, for people; "" where there is none.
func alarmMoment(in *durationpb.Duration, now time.Time) string {
	if in == nil {
		return ""
	}
	return now.Add(in.AsDuration()).UTC().Format(time.RFC3339)
}

// behind is how far each follower lacks behind, such as "n2 0, n3 14".
func behind(s shardJSON) string {
	var followers []string
	for _, r := range s.Replicas {
		switch {
		case r.NodeID == s.Leader:
		case s.Leader == "" || r.MatchIndex == 0:
			followers = append(followers, r.NodeID+" ?")
		default:
			followers = append(followers, fmt.Sprintf("%s %d", r.NodeID, r.Behind))
		}
	}
	return dash(strings.Join(followers, ", "))
}

// size is a number of bytes as people read it.
func size(bytes uint64) string {
	const unit = 1024
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, suffix := float64(bytes)/unit, 0
	for value >= unit && suffix < 3 {
		value, suffix = value/unit, suffix+1
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGT"[suffix])
}
