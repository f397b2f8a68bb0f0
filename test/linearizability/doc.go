// Package linearizability judges the histories that callers of a coordinator recorded: is
// there an order in which the contract allows all of it?
package linearizability
