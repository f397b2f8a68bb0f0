// Command coordinator is one node of an admission coordinator.
//
// Without flags it is a cluster of its own on 127.0.0.1:7420, with its data in
// ./coordinator-data. Its settings are in docs/settings.md; each is a flag, an
// environment variable and a key of a YAML file, and all of that comes from one table
// (settings.go).
//
// Logs go to standard error: as text on a terminal, otherwise as JSON. The last line
// of a node that ends badly says why, and begins with "coordinator: ". Who reads them may go
// away or stand still: a node goes on, and ends, without.
//
// It exits with 0 after SIGTERM, SIGINT or SIGHUP, on which it stops gracefully; with 2 where a
// setting is wrong; and with 1 where it cannot start or go on, or a second signal
// cut the stop short. A second signal within half a second counts as the first one. All
// that holds from the beginning on: before there is a node there is nothing to stop, and a start
// that hangs is cut off after --stop-timeout. SIGHUP is left ignored where it was (nohup).
package main
