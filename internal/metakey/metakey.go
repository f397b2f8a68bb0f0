// Package metakey is what the metadata of calls and answers is called, for who serves the service
// and who calls it. Who calls it from elsewhere finds the names in the proto file, which says what
// they mean: they never change.
//
// With package lease it is all that the public packages have of what is internal, and links nothing
// but gRPC.
package metakey

import "google.golang.org/grpc/metadata"

// What a call may carry.
const (
	// Cluster is the id of the cluster that a call is for; empty where its caller asks for it. A
	// node of another one refuses the call before anything is asked, and names its own in a
	// header of this name; it names its own as well where the name is empty.
	Cluster = "coordinator-cluster"
	// Forwarded marks a call that one node has forwarded to another.
	Forwarded = "coordinator-forwarded"
)

// Headers of every answer, where they are known.
const (
	Shard  = "coordinator-shard"  // the number of the identity's shard
	Shards = "coordinator-shards" // the number of all shards, fixed for a cluster
	Leader = "coordinator-leader" // the client address of that shard's leader
)

// Named returns the cluster that a node has named as its own in the headers of an answer, or "".
func Named(header metadata.MD) string {
	if named := header.Get(Cluster); len(named) == 1 {
		return named[0]
	}
	return ""
}

// Foreign returns the cluster that a node has named as its own where that is another than the
// given one, and otherwise "". To whom none is given every one is right.
func Foreign(header metadata.MD, cluster string) string {
	if named := Named(header); cluster != "" && named != cluster {
		return named
	}
	return ""
}
