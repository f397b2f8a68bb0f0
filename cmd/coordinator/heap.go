package main

import "runtime"

// heapSlack is how much garbage a node may collect before it is looked for, beside as
// much as there is in use: 64 MiB. The heap of a node is small, and nearly everything that
// a call allocates is garbage when it has been answered. Without the slack the collector
// runs dozens of times a second for a few megabytes each, and takes a fifth of the
// processor time that a busy node has for a call.
//
// GOGC and GOMEMLIMIT are the operator's as ever; the slack counts as part of the heap.
const heapSlack = 64 << 20

// growHeap makes the collector take the slack for memory in use, until the returned
// function is called. It is never written to, so it takes address space and no memory.
func growHeap() (shrink func()) {
	ballast := make([]byte, heapSlack)
	return func() { runtime.KeepAlive(ballast) }
}
