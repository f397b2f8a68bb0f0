// Package simulation lives through busy hours of a cluster: three nodes as the program
// starts them, gRPC, Raft and files included, in one testing/synctest bubble, where time is
// virtual and an hour costs some seconds.
//
//	make simulate HOURS=20           // prints the figures and, last, "violations: 0"
//	make simulate HOURS=3 SEED=7     // the same hours again, as far as they can be
//	bin/simulation.test -test.run '^TestSimulate$' -hours 1 -story // and what befell the cluster
//	go test ./test/simulation        // one hour with SIMULATION_SEED, or a fresh one, which is printed
//
// # An hour
//
// Nine stretches, each of four minutes with callers and faults and two in which hardly
// anybody calls and the cluster works, but for a leader that is killed after a minute or
// more: by then the log's clock stands wherever nobody's calls have moved it. At the end everything is mended, every key is read
// once more, the three replicas' states are compared at the same entry of the log, and
// what callers were told is judged. An hour counts only if it had 2,000 operations, 30
// faults and 5 elections; most have about 3,400, 55 and 50 a shard. An operation is a call
// of a caller with all its tries, or of a program's [client.Client.Do]; a fault is a step of
// the plan that took place; an election is a term whose leader was confirmed by a
// majority. A cluster lives for five hours, has one to three shards, and runs with the
// settings of the program, Raft's timing included.
//
// # What befalls it
//
// Nodes are killed, alone, in pairs and all, while they hand over leadership and again
// while they start: they find their files as they were at the moment of the kill, or with
// the state file of an earlier moment, from which the log has to be applied again.
// Nodes are stopped, and once in a cluster's life one is away for five minutes while 11,000
// entries are written: where the others have cut their logs by then it is sent a
// snapshot, which is counted. Leadership is handed over, also by a leader that does not hear
// of it and is asked by a flurry of calls meanwhile. A leader that the others do not hear any
// more is asked to commit, so that what it was asked for is in no log but its own. The six
// ways between the nodes are cut in every combination, one way and both, for long and in
// quick turns, and so are the ways to callers; what is under way is held, and arrives minutes
// later, or is lost with its connection. Delays are uneven, so that what goes over one
// connection overtakes what goes over another. One call in nine is delivered a second time,
// up to 25 s later; callers retry at any node, hang up in the middle, or give up while they
// have been told that nothing was done.
//
// # Who calls
//
// Five callers contend for each key, with deadlines from a second to a minute: they wait
// or poll, commit, release, extend, come too late or are never heard of again; some come
// with another request, and another principal uses a key of the same name. Some keys are
// forgotten after seconds, some are held in doubt and settled by an operator, some
// reservations last for hours. Other keys are used by programs with the client, whose
// machines' clocks run 500 ppm fast or slow; the world outside sees when they act.
//
// # Who judges
//
// Package linearizability, which knows the contract and no clock but the callers', with
// the bound on lateness from here. The book of this package, which has the true clock:
// nobody is admitted before what the owner was told has passed, no record is forgotten
// early, and nothing lasts longer than the documented bound allows: the time without a
// leader, and for each change of leader the larger of one second and a hundredth of the
// time to the deadline. The watcher looks every 100 ms who leads. And the world outside: owners act
// one after the other as their fences grow, nobody acts on what is done, and everybody gets
// one response.
//
// # What the seed decides
//
// When what befalls the cluster, what the callers do and when, and what each delay may be:
// the plan is drawn before the hour begins. It does not decide in which order goroutines
// run, what Raft and gRPC draw for themselves, and so who leads, which call meets which
// fault and which delay meets which write. The same seed tells the same story in its
// outline: a violation comes again often, not always.
//
// What a bubble cannot have is left to other tests: processes and their memory, clocks of
// nodes that disagree, disks that fail, hang or lose what was not synced, a process that
// is stopped and goes on.
//
// # Failures
//
// A violation is told with the seed, the hour, the calls of the key and what befell the
// cluster; the nodes' log is kept in a file that is named. Where the calls of a key are too
// many without an answer for an order to be searched, they are printed, and the hour does
// not count. Package planted shows that the hour can be
// failed.
package simulation
