package main

import (
	"github.com/spf13/cobra"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

// identityFlags are the parts of an identity that are flags; the key is the argument.
type identityFlags struct {
	namespace string
	principal string
	operation string
}

func (f *identityFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.StringVar(&f.namespace, "namespace", "", `the tenant (default "default")`)
	flags.StringVar(&f.principal, "principal", "", "whom the operation runs as (default: nobody in particular)")
	flags.StringVar(&f.operation, "operation", "", "what the key is for (default: nothing in particular)")
}

func (f *identityFlags) identity(key string) *coordinatorv1.Identity {
	return &coordinatorv1.Identity{Namespace: f.namespace, Principal: f.principal, Operation: f.operation, Key: key}
}

// oneKey is the argument of every command about one record.
func oneKey(_ *cobra.Command, arguments []string) error {
	if len(arguments) == 0 {
		return usagef("one KEY is needed, there are 0 arguments; one that begins with a dash goes behind --")
	}
	if len(arguments) != 1 {
		return usagef("one KEY is needed, there are %d arguments", len(arguments))
	}
	return nil
}

// required returns an error that names the first of the flags that is not given.
func required(command *cobra.Command, names ...string) error {
	for _, name := range names {
		if !command.Flags().Changed(name) {
			return usagef("--%s is required", name)
		}
	}
	return nil
}

// oneOf returns an error unless exactly one of the two flags is given.
func oneOf(command *cobra.Command, first, second string) error {
	switch a, b := command.Flags().Changed(first), command.Flags().Changed(second); {
	case a && b:
		return usagef("--%s and --%s exclude each other", first, second)
	case !a && !b:
		return usagef("either --%s or --%s is required", first, second)
	}
	return nil
}
