package linearizability

import "github.com/atmostonce/coordinator/test/history"

// CheckAll returns everything that is wrong with a history.
func CheckAll(events []history.Event) []history.Violation { return history.Check(events) }
