// Package scale proves what the coordinator promises about many records: how soon a
// node serves again, what a record costs in memory, and that very many deadlines in
// the same second neither cause an election nor keep callers waiting.
//
// `make test` runs it with few records and judges only what does not depend on the
// speed of the machine. `make scale` (COORDINATOR_SCALE=1) runs it with a million,
// judges the times too, and prints what it has seen.
//
// `make growth` (TestGrowth with -records) measures three nodes with five million records
// beside three without any: the throughput of pairs of Reserve and Commit, turn by turn,
// the memory of a record, and how long the nodes took to open. The records are made by
// the rules in the state files, in a minute or two, and are on all three nodes: it begins
// by seeing that they have the same state, and reads a sample. Most are committed, with a
// response of 100 bytes; one in ten is pending. Their windows are log-uniform from 1 min
// to 24 h. All are new, unless TESTFLAGS=-steady asks for deadlines as in a cluster that
// has had such records for more than a day: new ones end far more often, by thousands a
// second in the second minute, and the turns wait for that. What the nodes spend on
// records that end while it is the other cluster's turn is taken from that turn: it is
// printed, and the ratio also for the time that was left.
package scale
