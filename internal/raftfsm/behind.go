package raftfsm

import "time"

// A follower that is sent a state needs the entries behind it afterwards, and a state may
// take minutes to be copied, sent and checked. Raft cuts the log by a number of entries
// meanwhile. Where callers keep a leader busy, what the follower needs next would be gone by
// then, and it would be sent one state after the other, for as long as they do.
//
// So a leader keeps what a follower that answers has yet to acknowledge, as long as that takes
// no more than the log may and the state together: more is not worth a second state. Nor is it
// kept where the disk has no room for it.

// lacked returns the first entry of the log that must not be cut off, 0 for all of it; false
// where there is none.
func (g *Group) lacked() (first uint64, some bool) {
	if g.transport.runs.raft() == nil || !g.IsLeader() || g.log.bytes() > g.cfg.limits.bytesMax+g.store.Stats().FileBytes || g.store.Space().Take(0) != nil {
		return 0, false
	}
	since := time.Now().Add(-g.cfg.Timing.Election)
	for _, f := range g.Followers() {
		// The entry that it has is needed as well: what it is sent names the term of that.
		if f.LastContact.After(since) && (!some || f.MatchIndex < first) {
			first, some = f.MatchIndex, true
		}
	}
	return first, some
}
