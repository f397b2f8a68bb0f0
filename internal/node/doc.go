// Package node is one process of a coordinator: it takes its data directory, listens,
// finds its cluster, opens its shards and serves, until it is stopped or something
// that it cannot go on without breaks.
//
// # Life
//
// [Start] returns once the settings are checked, the data directory is locked and
// every port is open; what takes longer goes on afterwards: finding or founding the
// cluster (package membership) and opening the shards. Until that is done the health
// service answers NOT_SERVING and /readyz 503, and the services NO_LEADER to what is of a
// shard that is not open yet; /metrics answers all the time, until the servers are closed.
//
// [Node.Stop] takes the way back: nothing new is accepted; every shard that the node
// leads is handed over, and none is taken over any more, while calls still find their way
// through it to where they are led; whoever waits is answered, running calls end, and the
// directory is free. It is bounded by its context; what does not end within it is
// left to the end of the process, and the directory then stays locked until that.
//
// # Invariants
//
//  1. Two processes never use one data directory.
//  2. A shard is served, and takes part in its Raft group, only after node.json says on
//     disk to which cluster the node belongs.
//  3. Shards are created only until all of them have been; from then on a missing one
//     is an error.
//  4. Without [Config].Insecure nothing listens but on loopback addresses, or encrypted; and
//     through a port that others reach, nothing can be done by who does not show a certificate.
//  5. A node whose data directory, or a part of it, was deleted or replaced ends within a
//     second or two.
//  6. No panic of a call ends the process, or reaches its caller as anything but
//     OUTCOME_UNKNOWN.
//
// # Failures
//
// Start returns what is wrong with settings (as a [SettingError]), directory and
// ports. What breaks later closes [Node.Done], and [Node.Err] says what it was: the
// process is expected to end, since its other shards are on the same disk, and other
// nodes take over. That does not go through Stop, which a hung disk would hang.
//
// # Goroutines
//
// One finds the cluster and opens the shards, and then exchanges addresses; one
// watches each shard's leader for the health service; one hands over what a node leads
// beyond its share; one looks at the certificates of each port that has some; one watches the data directory and the free space; the gRPC and HTTP servers have their
// own. All end within Stop.
package node
