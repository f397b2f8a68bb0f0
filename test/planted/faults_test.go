package planted

import "github.com/atmostonce/coordinator/test/process"

// fault is one fault: an edit of one file.
type fault struct {
	name, file    string
	before, after string
	// tests are the package and the test that are to find it, where the simulated hours do
	// not: no process stands still in them.
	tests, run string
}

func (f fault) edit() process.Edit { return process.Edit{File: f.file, Old: f.before, New: f.after} }

// faults are all that are planted.
var faults = []fault{
	{
		name: "a commit is not asked for its token", file: "internal/admission/commit.go",
		before: "if reason := view.owned(c.Token); reason != None {",
		after:  "if reason := view.owned(c.Token); reason != None && reason != ReservationLost {",
	},
	{
		name: "a release is not asked for its token", file: "internal/admission/release.go",
		before: "if reason := view.owned(c.Token); reason != None {",
		after:  "if reason := view.owned(c.Token); reason != None && reason != ReservationLost {",
	},
	{
		name: "an owner that was replaced may extend", file: "internal/admission/extend.go",
		before: "if reason := view.owned(c.Token); reason != None {",
		after:  "if reason := view.owned(c.Token); reason != None && reason != ReservationLost {",
	},
	{
		name: "a committed key may be released", file: "internal/admission/release.go",
		before: "\tcase StateCommitted:\n\t\treturn view.refuse(AlreadyCommitted)\n",
		after:  "\tcase StateNone:\n\t\treturn view.refuse(AlreadyCommitted)\n",
	},
	{
		name: "a committed key is granted again", file: "internal/admission/reserve.go",
		before: "case state == StateCommitted:",
		after:  "case state == StateCommitted && at.Now < r.EndedAt.Add(5e9):",
	},
	{
		name: "a second commit replaces the first", file: "internal/admission/commit.go",
		before: "\t\tif c.Response.Hash != r.Response.Hash {\n\t\t\treturn view.refuse(CommitConflict)\n\t\t}\n\t\treturn view.answer(Answer{Repeated: true, Late: r.Late, Deadline: r.Alarm()})\n",
		after:  "\t\tif c.Response.Hash == r.Response.Hash {\n\t\t\treturn view.answer(Answer{Repeated: true, Late: r.Late, Deadline: r.Alarm()})\n\t\t}\n",
	},
	{
		name: "another request under the same key is taken for it", file: "internal/admission/reserve.go",
		before: "case fingerprinted && !bytes.Equal(c.Fingerprint, r.Fingerprint):",
		after:  "case fingerprinted && len(c.Fingerprint) != len(r.Fingerprint) && bytes.Equal(nil, c.Fingerprint):",
	},
	{
		name: "what is to be held is opened again", file: "internal/admission/lapse.go",
		before: "if r.OnLapse == Hold {",
		after:  "if r.OnLapse == Hold && r.Attempt > 1 {",
	},
	{
		name: "a fence is given out twice", file: "internal/admission/reserve.go",
		before: "fence := view.take(2)",
		after:  "fence := view.take(2) &^ 3",
	},
	{
		name: "an attempt that has ended is granted again", file: "internal/admission/reserve.go",
		before: "case r.remembers(c.Attempt, at.Now):",
		after:  "case r.remembers(c.Attempt, at.Now) && state == StatePending:",
	},
	{
		name: "an extension is acknowledged and not stored", file: "internal/admission/extend.go",
		before: "extended.PendingDeadline = deadline",
		after:  "extended.PendingDeadline = r.PendingDeadline + (deadline-r.PendingDeadline)/2",
	},
	{
		name: "a released key does not say so to the next owner", file: "internal/admission/reserve.go",
		before: "if before.State == StateReleased {",
		after:  "if before.State == StateReleased && before.Late {",
	},
	{
		name: "a record is forgotten early", file: "internal/admission/lapse.go",
		before: "return r.EndedAt.Add(r.Retention)",
		after:  "return r.EndedAt.Add(r.Retention / 4)",
	},
	{
		name: "a duplicate is answered without asking the followers", file: "internal/actor/answers.go",
		before: "case a.cfg.Group.Confirmed(a.lead.term, q.closedAt):",
		after:  "case a.lead != nil:",
		tests:  "test/e2e", run: "^TestPausedLeader$",
	},
	{
		name: "the clock of a new leader is ahead", file: "internal/actor/leadership.go",
		before: "a.lead.noted, a.lead.base = clock.Noted, time.Now()",
		after:  "a.lead.noted, a.lead.base = clock.Noted, time.Now().Add(-3*time.Second)",
	},
	{
		name: "live time is hardly ever written down", file: "internal/alarm/alarm.go",
		before: "DriftMin = time.Second",
		after:  "DriftMin = time.Hour",
	},
	{
		name: "an unknown outcome is told as one of nothing", file: "internal/actor/judge.go",
		before: "\tdefault:\n\t\treturn ErrOutcomeUnknown, ErrNoLeader\n\t}\n",
		after:  "\tdefault:\n\t\treturn ErrNoLeader, ErrNoLeader\n\t}\n",
	},
	{
		name: "a commit whose outcome is unknown is acknowledged", file: "internal/actor/propose.go",
		before: "\t\tp.fail(commands, riders)\n",
		after:  "\t\tfor _, c := range p.commands {\n\t\t\tif _, ok := c.request.Command.(admission.Commit); ok && !p.expired && !e.carriedOut() && commands == ErrOutcomeUnknown {\n\t\t\t\tc.answer(Reply{Remaining: time.Hour})\n\t\t\t\tp.commands = nil\n\t\t\t\tbreak\n\t\t\t}\n\t\t}\n\t\tp.fail(commands, riders)\n",
	},
	{
		name: "the applied position is saved early", file: "internal/store/flush.go",
		before: "\ts.flushing, s.gathering = l, newLayer(s.head.lastSequence+1)\n",
		after:  "\ts.flushing, s.gathering = l, newLayer(s.head.lastSequence+1)\n\tfor sequence, c := range l.changes {\n\t\tif sequence%97 == 0 {\n\t\t\tdelete(l.changes, sequence)\n\t\t\ts.gathering.put(sequence, c)\n\t\t}\n\t}\n",
	},
	{
		name: "the principal is not part of the identity", file: "internal/rpc/decode.go",
		before: "\t\tPrincipal: id.GetPrincipal(),\n",
		after:  "",
	},
	{
		name: "one replica decides otherwise than the others", file: "internal/raftfsm/batch.go",
		before: "\tview, err := b.tx.Admission(command.On())\n\tif err != nil {\n\t\treturn admission.Answer{}, err\n\t}\n\tdecision := admission.Decide(view, at, command)\n",
		after:  "\tview, err := b.tx.Admission(command.On())\n\tif err != nil {\n\t\treturn admission.Answer{}, err\n\t}\n\tif reserve, ok := command.(admission.Reserve); ok && b.answering {\n\t\treserve.Owner += \"!\"\n\t\tcommand = reserve\n\t}\n\tdecision := admission.Decide(view, at, command)\n",
	},
	{
		name: "a follower's log loses an entry at a restart", file: "internal/raftfsm/reconcile.go",
		before: "\tapplied := state.Applied()\n",
		after:  "\tif last > 0 {\n\t\tif err := log.log.DeleteRange(last, last); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tlast--\n\t}\n\tapplied := state.Applied()\n",
	},
}
