package main

import (
	"slices"
	"strings"

	"github.com/atmostonce/coordinator/internal/environment"
)

// environmentPrefix begins the name of every variable that is this program's.
const environmentPrefix = "COORDINATOR_"

// fenceVariable is what `coordctl run` gives to the command that it runs, which may be
// this program. It is no setting.
const fenceVariable = environmentPrefix + "FENCE"

// checkEnvironment returns an error for the first variable, by name, that looks like a
// setting and is none: a misspelled one must not be taken for absent. all has the form
// of [os.Environ].
func checkEnvironment(all []string, sections []section) error {
	known := []string{setting{name: configSetting}.environment()}
	for _, section := range sections {
		for _, s := range section.settings {
			known = append(known, s.environment())
		}
	}
	settings := slices.DeleteFunc(slices.Clone(all), func(variable string) bool {
		return strings.HasPrefix(variable, fenceVariable+"=")
	})
	return environment.Check(settings, environmentPrefix, known)
}

// lookup returns what finds the value of a variable; "" where it is not set.
func lookup(variables []string) func(name string) string {
	return func(name string) string { return environment.Lookup(variables, name) }
}
