// Package membership knows who this node is, which cluster it belongs to and who else
// does. It keeps node.json in the data directory, makes one cluster of nodes that
// start empty, and keeps the addresses of the others up to date.
//
// # How a cluster begins
//
// A node without a list of peers is a cluster of its own at once. Otherwise every
// node asks every listed peer who it is (Hello), again and again, and decides by the
// answers alone ([judge]):
//
//   - A peer belongs to a cluster that counts this very incarnation among its
//     members: join it.
//   - A peer belongs to a cluster that does not: this node is excluded. It takes part in
//     nothing, says what an operator can do, and gives up after a while.
//   - Everybody has answered, is empty, and has the same list of peers and number of
//     shards: the first listed node draws the cluster id and counts everybody,
//     with the incarnation just heard, as a member. Only that node begins the Raft
//     logs, since Raft compares only terms and would not notice two beginnings.
//   - Anything else: wait, and say for what.
//
// Whatever is decided is in node.json before anybody hears of it or acts on it, with
// all members, so that every node that knows of the cluster can pass it on. A crash at
// any point therefore leaves a node either empty, or a member for good: the first
// node that crashes before its node.json is written has founded nothing, and one
// that crashes right after goes on from there.
//
// # Invariants
//
//  1. A node draws its incarnation once, when it makes node.json, and keeps it.
//  2. The cluster id of a node is set once and never changes.
//  3. Two clusters never share a member: an incarnation that is in the list of a cluster
//     joins that one, and no other list has it, because only the first listed node
//     makes one, and only once.
//  4. A node that lost its data directory is another incarnation, which no cluster
//     counts as a member, and to which nothing meant for the lost one is delivered
//     (package peer).
//  5. What is on disk is never taken for a fresh start: whatever node.json is missing,
//     damaged or somebody else's is an error that names the file.
//  6. Two processes never report the same number of starts of one directory, unless the
//     directory was copied or restored between them.
//  7. A directory whose process was told that another one is newer is not used again: being
//     started once more would make it look newer, and the two would take turns.
//  8. Nothing is written into a directory that took the place of this process's own.
//  9. No Hello changes a Raft configuration: who is a member of a running cluster
//     is read from there, and heard of otherwise only by nodes that are not in it yet.
//
// # Failures
//
// Errors of [Open] are for the operator: the node does not start. A failed write of
// node.json while a cluster begins ends the node; one that only notes who came
// and went is logged, and tried again. While a write takes its time the node says what is
// on disk. Peers that do not answer are waited for.
package membership
