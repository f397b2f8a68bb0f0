package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/environment"
	"github.com/atmostonce/coordinator/internal/version"
)

const (
	// environmentPrefix begins the name of every variable that is this program's.
	environmentPrefix = "COORDCTL_"
	endpointsFlag     = "endpoints"
	endpointsDefault  = "127.0.0.1:7420"
	clusterFlag       = "cluster"
	timeoutDefault    = 5 * time.Second
	// timeoutMost is what a longer --timeout is cut to, so that --wait fits on top.
	timeoutMost = math.MaxInt64 / 4
)

// exitCodes is shown in every help text but that of run, which has its own.
const exitCodes = `
Exit codes:
   0  granted, or done
   1  another failure
   2  usage: the command line or an argument is wrong
   3  pending: another attempt holds the reservation
   4  committed: a duplicate, its response is shown
   5  in doubt: nobody is admitted until an earlier attempt is settled
   6  the key was used with another fingerprint
   7  not the owner any more: lost, lapsed, not found, ended or in conflict;
      or changed since it was looked at
   8  unavailable, or the outcome is unknown: retry with the same attempt id or token
   9  refused for load, storage or quota
  10  not allowed
  11  the cluster is not well (status)
`

const rootLong = `coordctl asks a coordinator for admission, and shows operators what it is doing.

Results go to stdout, everything else to stderr. With -o json all of it is JSON, on
stderr one object a line: {"error":…}, which is the last, or {"note":…} where nothing
has failed. Durations are written as 100ms, 5m0s or 24h. A key that begins with a dash
goes behind "--": coordctl get -- -x. For run it is --key=-x.

A flag that takes one value may be given once. If a node cannot be reached, has no
leader or loses an answer, the same call goes to the next of --endpoints, and round
again until --timeout is over: a repetition is the same attempt, so nothing happens
twice.

It speaks plain text unless one of the flags --tls and so on is given. --principal is taken
at its word.`

// control is one run of the program.
type control struct {
	world
	arguments []string

	endpoints     []string
	endpointsFrom string // the flag or the variable that names them
	cluster       string // its id; "": whichever answers
	clusterFrom   string
	security      security
	output        string
	timeout       time.Duration
	// exitOffset is what is added to the exit code of a failure; see [exitOfRun].
	exitOffset int
	// command is what is carried out, and given its arguments; nil before that.
	command *cobra.Command
	given   []string
	// looks says that the command changes nothing: none of its calls leaves a doubt.
	looks bool
	// waits says that --wait is a part of the time that a call has.
	waits bool

	unhelped    error // why there was no help where it was asked for
	notes       *notes
	connections []*connection
	contacts    contacts
}

func (c *control) root() *cobra.Command {
	runs := c.run()
	root := &cobra.Command{
		Use:                "coordctl",
		Short:              "Admit once, from the command line",
		Long:               rootLong,
		Version:            version.Of(),
		SilenceErrors:      true,
		SilenceUsage:       true,
		DisableSuggestions: true,
		CompletionOptions:  cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(command *cobra.Command, arguments []string) error {
			c.command, c.given = command, arguments
			return c.check(command)
		},
		RunE: func(command *cobra.Command, _ []string) error {
			return usagef("which command? `coordctl --help` lists them")
		},
	}
	bare := root.UsageTemplate()
	root.SetUsageTemplate(bare + exitCodes)
	root.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(help())
	root.SetHelpFunc(c.helpOf(root.HelpFunc()))

	endpoints := environment.Lookup(c.environment, variableOf(endpointsFlag))
	if endpoints == "" {
		endpoints = endpointsDefault
	}
	flags := root.PersistentFlags()
	flags.StringSliceVar(&c.endpoints, endpointsFlag, strings.Split(endpoints, ","),
		"client addresses of nodes, host:port,…; "+variableOf(endpointsFlag)+" sets the default")
	flags.StringVar(&c.cluster, clusterFlag, environment.Lookup(c.environment, variableOf(clusterFlag)),
		"id of the cluster that they are of, as status shows it: no other one is asked for anything; "+variableOf(clusterFlag)+" sets the default")
	c.securityFlags(flags)
	flags.StringVarP(&c.output, "output", "o", "table", "how to show results: table or json")
	flags.DurationVar(&c.timeout, "timeout", timeoutDefault,
		"how long to try; a reserve with --wait has that on top; a listing has it for each page, bench for each call")

	runs.SetUsageTemplate(bare)
	root.AddCommand(
		runs,
		c.reserve(), c.commit(), c.release(), c.extend(), c.looking(c.get()), c.resolve(), c.purge(), c.looking(c.records()),
		c.looking(c.shards()), c.looking(c.shard()), c.looking(c.status()), c.looking(c.members()), c.transferLeadership(), c.bench(),
	)
	once(root.PersistentFlags())
	root.InitDefaultHelpFlag()
	for _, command := range root.Commands() {
		once(command.Flags())
		command.InitDefaultHelpFlag() // else what follows --help is taken for its value
	}
	return root
}

// looking marks a command that changes nothing. Those below it may.
func (c *control) looking(command *cobra.Command) *cobra.Command {
	run := command.RunE
	command.RunE = func(command *cobra.Command, arguments []string) error {
		c.looks = true
		return run(command, arguments)
	}
	return command
}

// help is cobra's own but for what is no command: that has no help.
func help() *cobra.Command {
	return &cobra.Command{
		Use:   "help [command]",
		Short: "Help about any command",
		// As --help it needs no node, whatever is wrong with how they are named.
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil },
		RunE: func(command *cobra.Command, arguments []string) error {
			found, rest, err := command.Root().Find(arguments)
			switch {
			case err != nil:
				return err
			case len(rest) > 0:
				return unknownCommand(found, rest[0])
			}
			return found.Help()
		},
	}
}

// helpOf is what --help shows, but for what is no command. cobra takes no error from it: c.unhelped
// is that.
func (c *control) helpOf(show func(*cobra.Command, []string)) func(*cobra.Command, []string) {
	return func(command *cobra.Command, arguments []string) {
		if rest := command.Flags().Args(); len(rest) > 0 && command.HasSubCommands() {
			c.unhelped = unknownCommand(command, rest[0])
			return
		}
		show(command, arguments)
	}
}

func unknownCommand(of *cobra.Command, name string) error {
	return usagef("unknown command %q for %q", name, of.CommandPath())
}

// flagError is a flag that cannot be parsed, in words of ours: the parser's own speak of
// the functions it uses.
func flagError(command *cobra.Command, err error) error {
	var (
		invalid *pflag.InvalidValueError
		unknown *pflag.NotExistError
		bare    *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &unknown):
		return unknownFlag(command, dashed(unknown.GetSpecifiedName(), unknown.GetSpecifiedShortnames()))
	case errors.As(err, &bare):
		return usagef("%s needs a value", dashed(bare.GetSpecifiedName(), bare.GetSpecifiedShortnames()))
	case !errors.As(err, &invalid):
		return usagef("%v", err)
	}
	flag := invalid.GetFlag()
	if flag.Name == "help" || flag.Name == "version" {
		return usagef("--%s takes no value", flag.Name)
	}
	for _, ours := range []error{errGivenTwice, errEmpty, errEmptyNeeded} {
		if errors.Is(err, ours) {
			return usagef("--%s %v", flag.Name, ours)
		}
	}
	wanted := map[string]string{
		"duration": "a duration such as 100ms, 5m or 24h, no longer than 2562047h",
		"uint32":   "a number from 0 to 4294967295",
		"uint64":   "a number, 0 or more",
		"int":      "a whole number",
		"int64":    "a whole number",
		codeType:   fmt.Sprintf("a number from 0 to %d", codeMax),
		"bool":     "true or false",
		"intSlice": "numbers such as 75,76",
		// the only one is --endpoints
		"stringSlice": "addresses such as 127.0.0.1:7420,127.0.0.1:7421",
	}[flag.Value.Type()]
	if wanted == "" {
		wanted = "of type " + flag.Value.Type()
	}
	return usagef("--%s is %q, it must be %s", flag.Name, invalid.GetValue(), wanted)
}

// dashed is a flag as it was written: by its name, or among others of one letter.
func dashed(name, letters string) string {
	if letters != "" {
		return "-" + letters
	}
	return "--" + name
}

// unknownFlag says that there is no such flag, and what to do if it was meant as a key.
func unknownFlag(command *cobra.Command, written string) error {
	path := command.CommandPath()
	next := fmt.Sprintf(", see `%s --help`", path)
	switch {
	case strings.HasPrefix(command.Use, command.Name()+" KEY"):
		next = fmt.Sprintf("; a KEY that begins with a dash goes behind --: %s -- %s", path, written)
	case command.Flags().Lookup(keyFlag) != nil:
		next = fmt.Sprintf("; a key that begins with a dash is written --%s=%s", keyFlag, written)
	}
	return usagef("%s is no flag of `%s`%s", written, path, next)
}

// check looks at the environment and at the flags that all commands have.
func (c *control) check(command *cobra.Command) error {
	known := append(securityVariables(), variableOf(endpointsFlag), variableOf(clusterFlag))
	if err := environment.Check(c.environment, environmentPrefix, known); err != nil {
		return usageError{text: err.Error()}
	}
	if c.output != "table" && c.output != "json" {
		return usagef("--output is %q, it must be table or json", c.output)
	}
	if c.timeout <= 0 {
		return usagef("--timeout is %v, it must be more than 0", c.timeout)
	}
	c.timeout = min(c.timeout, timeoutMost)
	for i, endpoint := range c.endpoints {
		c.endpoints[i] = strings.TrimSpace(endpoint)
	}
	c.endpointsFrom, c.clusterFrom = c.source(command, endpointsFlag), c.source(command, clusterFlag)
	if len(c.endpoints) == 0 {
		return usagef("%s names no node", c.endpointsFrom)
	}
	if err := c.checkSecurity(command); err != nil {
		return err
	}
	// The client connects to nothing before a call, and is the one that knows what can be an
	// endpoint, and a cluster.
	made, err := c.newClient()
	if err != nil {
		return err
	}
	return made.Close()
}

// newClient returns a client of the cluster, whose contacts are kept in mind, or an error that says
// which flag is wrong.
func (c *control) newClient(options ...client.DialOption) (*client.Client, error) {
	dialed, secured := client.WithDialer(c.contacts.dial), client.WithTransportCredentials(c.security.credentials(c.contacts.spoken))
	options = append(options, dialed, secured)
	if c.cluster != "" {
		options = append(options, client.WithCluster(c.cluster))
	}
	made, wrong := client.Dial(c.endpoints, options...)
	if wrong == nil {
		return made, nil
	}
	from := c.endpointsFrom
	if alone, err := client.Dial(c.endpoints, dialed, secured); err != nil {
		wrong = err
	} else {
		_ = alone.Close() // it has connected to nobody
		from = c.clusterFrom
	}
	return nil, usagef("%s: %s", from, strings.TrimPrefix(wrong.Error(), "client: "))
}

// once makes each flag that takes one value refuse a second: the last of two
// tokens would win silently otherwise. It makes each text refuse to be empty, as what a
// script makes of a variable that is not set, unless [mayBeEmpty] was said of it: who gives
// a flag does not mean that there is none.
func once(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if _, repeats := flag.Value.(pflag.SliceValue); !repeats {
			_, empty := flag.Annotations[emptyAnnotation]
			flag.Value = &onceValue{
				Value: flag.Value, full: flag.Value.Type() == "string" && !empty,
				needed: strings.Contains(flag.Usage, "(required)"), // as it says of itself
			}
			if flag.DefValue == "0s" {
				flag.DefValue = "" // else the help text calls it the default
			}
		}
	})
}

// emptyAnnotation marks flags whose empty text is a value like any other.
const emptyAnnotation = "may be empty"

// mayBeEmpty says of flags that their text may be empty.
func mayBeEmpty(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		flags.Lookup(name).Annotations = map[string][]string{emptyAnnotation: nil}
	}
}

var (
	errGivenTwice = errors.New("is given twice and takes one value")
	errEmpty      = errors.New("is empty: give it a value, or leave it out")
	// errEmptyNeeded is that of a flag that cannot be left out.
	errEmptyNeeded = errors.New("is empty, and is required: is a variable of the script not set?")
)

type onceValue struct {
	pflag.Value
	full   bool // it refuses an empty text
	needed bool // it cannot be left out
	given  bool
}

// Set implements pflag.Value.
func (v *onceValue) Set(text string) error {
	switch {
	case v.given:
		return errGivenTwice
	case v.full && text == "" && v.needed:
		return errEmptyNeeded
	case v.full && text == "":
		return errEmpty
	}
	v.given = true
	return v.Value.Set(text)
}
