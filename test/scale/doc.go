// Package scale proves what the coordinator promises about many records: how soon a
// node serves again, what a record costs in memory, and that very many deadlines in
// the same second neither cause an election nor keep callers waiting.
//
// `make test` runs it with few records and judges only what does not depend on the
// speed of the machine. `make scale` (COORDINATOR_SCALE=1) runs it with a million,
// judges the times too, and prints what it has seen.
package scale
