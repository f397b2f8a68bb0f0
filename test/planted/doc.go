// Package planted shows that the checker can fail: it plants faults, one at a time, into
// the rules, the actor, the store and the log, and lets a simulated cluster live with
// each until somebody objects.
//
//	COORDINATOR_FAULT=1 go test -timeout 60m -v ./test/planted // all of them
//	go test ./test/planted                                    // two, drawn by a printed seed
//
// A fault is an edit of one place in one source file, applied to a copy of it for a build
// of its own: the product has no switches for it. An edit that does not apply any more
// fails, so that none is lost when the source moves on.
//
// Caught means that the simulation fails and says what was broken, for one of the
// reasons that are given with the fault: a rule of the independent model, of the book of
// deadlines, of the world outside, or one of the product's own checks that ends a replica
// loudly. That a build does not come up at all does not count.
//
// Whoever plants faults here has not written what finds them.
package planted
