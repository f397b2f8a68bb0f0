// Package environment finds the environment variables that are meant for a program and
// that it does not know: a setting that is misspelled must not be taken for absent.
//
// Invariants:
//
//  1. A variable whose name begins with the program's prefix, and that has a value, is
//     known, or one of those by which Kubernetes and Docker describe a service to the
//     containers beside it, or refused.
//  2. The value of a variable is never shown.
package environment

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Check returns an error for the first variable, by name, that begins with the prefix and
// is none of the known ones; it names the nearest of those if it may have been meant. An empty
// one is not set. all has the form of [os.Environ].
func Check(all []string, prefix string, known []string) error {
	ofServices := describesService()
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	for _, variable := range sorted {
		name, value, _ := strings.Cut(variable, "=")
		if value == "" || !strings.HasPrefix(name, prefix) || slices.Contains(known, name) || ofServices.MatchString(variable) {
			continue
		}
		if meant, ok := nearest(name[len(prefix):], prefix, known); ok {
			return fmt.Errorf("unknown environment variable %s; the nearest that there is: %s", name, meant)
		}
		return fmt.Errorf("unknown environment variable %s", name)
	}
	return nil
}

// Lookup returns the value of a variable; "" where it is not set. As in a process's own
// environment, the first of several counts.
func Lookup(all []string, name string) string {
	for _, variable := range all {
		if value, ok := strings.CutPrefix(variable, name+"="); ok {
			return value
		}
	}
	return ""
}

// describesService returns what matches the variables, with their values, that
// Kubernetes and Docker put into every container beside a service called "coordinator",
// or "coordinator-" and anything: no human wrote them. COORDINATOR_PORT=7420 is a human's.
func describesService() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Z0-9_]+_(SERVICE_HOST=|SERVICE_PORT(_[A-Z0-9_]+)?=|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=|PORT=\w+://)`)
}

// typosMost is how many letters may be wrong in a name that was meant, and one in typosIn of a
// long one.
const (
	typosMost = 2
	typosIn   = 4
)

// nearest returns the name that the fewest changes of a letter lead to from what follows the
// prefix, if those are few enough to be a mistake: another setting is no help.
func nearest(rest, prefix string, names []string) (meant string, ok bool) {
	least := max(typosMost, len(rest)/typosIn) + 1
	for _, candidate := range names {
		if d := distance(rest, strings.TrimPrefix(candidate, prefix)); d < least {
			meant, least, ok = candidate, d, true
		}
	}
	return meant, ok
}

// distance counts the letters to put in, leave out or change to make one name of the
// other.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // of the beginning of a so far to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
