// Package scenario reads and runs the admission scenarios: short scripts of calls
// and of what each must answer, in testdata/admission.yaml. testdata/README.md is
// the language's manual.
//
// The same scripts are run on several floors of the house. A [Target] is such a
// floor, seen as the handful of calls that a script can make; a [Runner] plays a
// script against it and reports the first answer that is not what the script says.
// [Pure] is the lowest floor, the rules with a virtual clock.
//
// # Invariants
//
//  1. A script is read strictly: an unknown field, a step without its expectation
//     or a label that nobody gave is an error, never a step that checks less.
//  2. Every field that an expectation gives is compared.
//  3. Scripts are never changed for a target. What differs between targets is in
//     [Runner]: fresh namespaces, and a tolerance for durations.
//
// # Failures
//
// [Load] says what is wrong with the text and where. [Runner.Run] says which step
// was answered differently and in which field, or passes on the error with which
// the target could not answer at all.
package scenario
