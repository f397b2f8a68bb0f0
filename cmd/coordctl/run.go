package main

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// Exit codes of run, beside those of the command. Every code of its own is 100 more than
// what it would be elsewhere in coordctl, so that it is unlikely to be the command's; only
// pending stays what it is.
const (
	exitOfRun       = 100
	exitNotRecorded = 12 // it ran, and what came of it could not be recorded
	// As of a shell, env and timeout.
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignalled     = 128 // and the number of the signal
)

// keyFlag is the flag of run that is an argument of the other commands.
const keyFlag = "key"

// Bounds that hold where no flag says otherwise.
const (
	killAfterDefault = 10 * time.Second
	settleDefault    = time.Minute
)

const runLong = `Run a command at most once, on whichever machine it is asked for first.

The first caller of a key is admitted: its command runs, its output passes through, and
its exit status and the last 64 KiB of its output are recorded. Every later caller of the
same key and command, anywhere, runs nothing: it gets the recorded output on stdout and
stderr, and the recorded exit status. A caller that comes while the command runs waits
for it to end; with --no-wait it exits 3 at once.

What ends a run:
  the command ends            its exit status is recorded, 0 or not, or a signal's; with
                              --release-on 75 a status of 75 says instead that nothing
                              happened: the key is free, and the next caller runs
  it cannot be started        the key is free at once
  this machine dies           the key lapses after --pending-ttl. --on-lapse reopen: the
                              next caller runs the command again, so a part of it may
                              happen twice. --on-lapse hold: nobody runs it until
                              someone settles it with "coordctl resolve"
  ownership is lost           (the coordinator was away for too long, or an operator
                              purged the key) the command and all of its process group get
                              SIGTERM, then SIGKILL, at the latest when the key may be
                              given to another. Nothing is recorded: the key lapses

The reservation is renewed while the command runs, for at most 7 days. The command finds
in COORDINATOR_FENCE a number that grows with every run: a system that compares it can
refuse a run that has been overtaken. It reads this program's stdin, and runs in a
process group of its own; SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are
passed on to that. If this program is killed, the group is killed too (see docs/run.md
for what nobody can kill).

What this program itself says is a line on stderr that begins with "coordctl: ". With
-o json it is one JSON object a line: {"error":…}, as the last, where the exit code is
not the command's, and {"note":…} for all else, such as what -v says.

The key goes with the command: its words are hashed into a fingerprint, and the same key
with another command is refused. What the output holds can be read by all who may read
the key: --no-output records the exit status only.

Exit codes: those of the command (128 and n if signal n ended it), recorded or not, and
    3  pending: it runs elsewhere (--no-wait, or --wait is over)
  101  another failure, such as an output that cannot be written
  102  usage: the command line or an argument is wrong
  104  the key holds a response that no run recorded
  105  in doubt: an earlier run ended in silence and must be settled
  106  the key was used with another command, or is reserved by something else
  107  ownership was lost: the command was stopped, and what it did is unknown
  108  the coordinator is unavailable: the command was not started
  109  refused for load, storage or quota: the command was not started
  110  not allowed: the command was not started
  112  the command ended, and the outcome is not recorded, or nobody knows whether it is
  126  the command cannot be executed
  127  the command was not found
A command should not use the codes above for itself. 128 and n is also what this
program ends with if signal n comes before the command is started.`

const runExample = `  # A deployment from several CI jobs: one of them runs it, all get its log and status.
  coordctl run --key deploy-42 --operation deploy:web -- ./deploy.sh --verbose

  # A cron job on three machines, once a night; a night that nobody knows the outcome of
  # waits for a person.
  coordctl run --key "report-$(date +%F)" --on-lapse hold --no-wait -- /opt/report

  # 75 (EX_TEMPFAIL) means that it did nothing and is to be tried again.
  coordctl run --key import-7 --release-on 75 -- ./import.sh`

// runFlags are the flags of run.
type runFlags struct {
	identity    identityFlags
	key         string
	fingerprint string
	pendingTTL  time.Duration
	retention   time.Duration
	onLapse     string
	owner       string
	wait        time.Duration
	noWait      bool
	releaseOn   []int
	noOutput    bool
	killAfter   time.Duration
	settle      time.Duration
	verbose     bool
}

func (c *control) run() *cobra.Command {
	f := &runFlags{}
	command := &cobra.Command{
		Use:     "run --key KEY [flags] -- COMMAND [ARGUMENT…]",
		Short:   "Run a command at most once across machines, and replay it for all others",
		Long:    runLong,
		Example: runExample,
		Args: func(command *cobra.Command, arguments []string) error {
			c.exitOffset = exitOfRun
			switch {
			case f.key == "--" && command.ArgsLenAtDash() < 0:
				return usagef("--%s needs a value, and -- follows it", keyFlag)
			case len(arguments) > 0 && command.ArgsLenAtDash() != 0:
				return usagef("%q is neither a flag nor the value of one; the command goes behind --", arguments[0])
			case len(arguments) == 0 || arguments[0] == "":
				return usagef("there is no command; it goes behind --, as in `coordctl run --key KEY -- COMMAND`")
			}
			return nil
		},
		RunE: func(command *cobra.Command, arguments []string) error {
			r, err := c.newRunner(command, f, arguments)
			if err != nil {
				return err
			}
			return r.run(command.Context())
		},
	}
	command.SetFlagErrorFunc(func(command *cobra.Command, err error) error {
		c.exitOffset = exitOfRun
		return flagError(command, err)
	})
	flags := command.Flags()
	flags.SetInterspersed(false) // what follows a command that lacks its -- is not taken for ours
	flags.StringVar(&f.key, keyFlag, "", "what is to be done once: deploy-42, report-2026-11-29 (required); --key=-x if it begins with a dash")
	f.identity.add(command)
	flags.DurationVar(&f.pendingTTL, "pending-ttl", 0, "how long the key stays taken without a word of this program, 100ms to 24h (default: the server's, 5m)")
	flags.StringVar(&f.onLapse, "on-lapse", "reopen", "what it means then: reopen lets the next caller run the command, hold lets nobody until it is settled")
	flags.DurationVar(&f.retention, "retention", 0, "how long the outcome is replayed, 1s to 720h (default: the server's, 24h)")
	flags.BoolVar(&f.noWait, "no-wait", false, "exit 3 at once if the command runs elsewhere")
	flags.DurationVar(&f.wait, "wait", 0, "how long to wait for the one that runs elsewhere (default: until it ends)")
	flags.IntSliceVar(&f.releaseOn, "release-on", nil, "exit statuses, N,…, after which nothing is recorded and the key is free")
	flags.BoolVar(&f.noOutput, "no-output", false, "record no output; the command gets this program's own stdout and stderr")
	flags.DurationVar(&f.killAfter, "kill-after", killAfterDefault, "time from SIGTERM to SIGKILL when ownership is lost; at most a third of --pending-ttl")
	flags.DurationVar(&f.settle, "settle-timeout", settleDefault, "how long to try to record the outcome")
	flags.StringVar(&f.fingerprint, "fingerprint", "", "what tells one command from another instead of its words, in hex, up to 64 bytes")
	flags.StringVar(&f.owner, "owner", "", "what to call this caller, for people (default: host and process id)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "say on stderr what was decided")
	return command
}

// newRunner checks the flags and returns what runs the command.
func (c *control) newRunner(command *cobra.Command, f *runFlags, arguments []string) (*runner, error) {
	if err := required(command, keyFlag); err != nil {
		return nil, err
	}
	changed := command.Flags().Changed
	switch {
	case f.noWait && changed("wait"):
		return nil, usagef("--wait and --no-wait exclude each other")
	case f.wait < 0:
		return nil, usagef("--wait is %v, it must be 0 or more", f.wait)
	case f.killAfter <= 0:
		return nil, usagef("--kill-after is %v, it must be more than 0", f.killAfter)
	case f.settle <= 0:
		return nil, usagef("--settle-timeout is %v, it must be more than 0", f.settle)
	}
	for _, status := range f.releaseOn {
		if status < 0 || status > 255 {
			return nil, usagef("--release-on: %d is no exit status, which is 0 to 255", status)
		}
	}
	onLapse := client.Reopen
	wire, err := parseOnLapse(f.onLapse)
	switch {
	case err != nil:
		return nil, err
	case wire == coordinatorv1.OnLapse_ON_LAPSE_HOLD:
		onLapse = client.Hold
	}
	fingerprint := fingerprintOf(arguments)
	if changed("fingerprint") {
		if fingerprint, err = decodeHex("fingerprint", f.fingerprint); err != nil {
			return nil, err
		}
	}
	if f.owner == "" {
		f.owner = thisProcess()
	}
	r := &runner{
		control: c, flags: f, arguments: arguments,
		identity: client.Identity{
			Namespace: f.identity.namespace, Principal: f.identity.principal, Operation: f.identity.operation, Key: f.key,
		},
		options: []client.ReserveOption{
			client.WithFingerprint(fingerprint), client.WithOnLapse(onLapse), client.WithOwner(f.owner),
		},
		onLapse: onLapse,
	}
	if changed("pending-ttl") {
		r.options = append(r.options, client.WithPendingTTL(f.pendingTTL))
	}
	if changed("retention") {
		r.options = append(r.options, client.WithRetention(f.retention))
	}
	switch {
	case f.noWait:
	case changed("wait"):
		r.patience = f.wait
	default:
		r.patience = forever
	}
	return r, nil
}

// releases reports whether a status says that nothing happened.
func (f *runFlags) releases(status int) bool { return slices.Contains(f.releaseOn, status) }

// fingerprintLabel keeps the fingerprints of command lines apart from other hashes.
const fingerprintLabel = "coordctl run 1"

// fingerprintOf is the SHA-256 of the words of a command line, each behind its length. It
// is compared over all versions of this program and never changes. The directory, the
// environment and stdin are no part of it: they differ from machine to machine.
func fingerprintOf(arguments []string) []byte {
	framed := binary.AppendUvarint(nil, uint64(len(fingerprintLabel)))
	framed = append(framed, fingerprintLabel...)
	for _, argument := range arguments {
		framed = binary.AppendUvarint(framed, uint64(len(argument)))
		framed = append(framed, argument...)
	}
	sum := sha256.Sum256(framed)
	return sum[:]
}

// ownerBytesMax is how long the name of an owner may be.
const ownerBytesMax = 128

// thisProcess is what an owner is called that has no other name.
func thisProcess() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	id := fmt.Sprintf(" process %d", os.Getpid())
	host = strings.ToValidUTF8(host, "")
	return strings.ToValidUTF8(host[:min(len(host), ownerBytesMax-len(id))], "") + id
}

// notStarted is a failure after which the command was not started. exit is its exit code; 0: the
// failure's own.
func notStarted(failure reason.Failure, exit int) callError {
	failure.Message += "; the command was not started"
	failure.Applied = reason.No
	return callError{failure: failure, exit: exit}
}
