package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
	"github.com/atmostonce/coordinator/internal/reason"
)

// reserveJSON is the result of reserve. What it holds depends on the outcome.
type reserveJSON struct {
	Outcome string `json:"outcome"`

	// granted
	Token          string `json:"token,omitempty"`
	Fence          uint64 `json:"fence,omitempty"`
	Attempt        uint32 `json:"attempt,omitempty"` // pending too
	Previous       string `json:"previous,omitempty"`
	PreviousReason string `json:"previous_reason,omitempty"`
	PreviousFence  uint64 `json:"previous_fence,omitempty"`
	Remaining      string `json:"remaining,omitempty"` // committed too
	Waited         string `json:"waited,omitempty"`
	Repeated       *bool  `json:"repeated,omitempty"`
	AttemptID      string `json:"attempt_id,omitempty"`

	RetryAfter string        `json:"retry_after,omitempty"` // pending
	Owner      string        `json:"owner,omitempty"`       // pending, in doubt
	Age        string        `json:"age,omitempty"`         // pending, committed, in doubt
	Response   *responseJSON `json:"response,omitempty"`    // committed
}

func (c *control) reserve() *cobra.Command {
	var (
		identity    identityFlags
		fingerprint string
		attemptID   string
		pendingTTL  time.Duration
		retention   time.Duration
		onLapse     string
		wait        time.Duration
		owner       string
		tokenOnly   bool
	)
	command := &cobra.Command{
		Use:   "reserve KEY",
		Short: "Ask to be the one that is admitted",
		Long: `Ask to be the one that is admitted. Exit code 0 admits, and nothing else does.

The result of a grant holds the token that commit, release and extend need, and says for
how long it holds from now on (remaining): 99.9 % of --pending-ttl, counted from when it
was asked for. Stop then. A grant that was over when its answer came admits nobody: the
key is given back, and the exit code is 7. With --attempt-id it is not, and lapses.

Commit, release, extend and get find the record by KEY, --namespace, --principal and
--operation together: give each of them as it was given here. The same KEY under another
--operation is another record.

A fingerprint, such as a hash of the request, makes the reuse of a key for another request
exit 6. It is compared whatever became of the key, until it is released or forgotten.`,
		Example: `  token=$(coordctl reserve KEY --token-only) &&
      do-the-work &&
      coordctl commit KEY --token "$token" --code 200`,
		Args: oneKey,
		RunE: func(command *cobra.Command, arguments []string) error {
			request := &coordinatorv1.ReserveRequest{Identity: identity.identity(arguments[0]), Owner: owner}
			var err error
			if request.Fingerprint, err = decodeHex("fingerprint", fingerprint); err != nil {
				return err
			}
			if request.AttemptId, err = attempt(command, attemptID); err != nil {
				return err
			}
			if request.OnLapse, err = parseOnLapse(onLapse); err != nil {
				return err
			}
			request.PendingTtl = given(command, "pending-ttl", pendingTTL)
			request.Retention = given(command, "retention", retention)
			request.Wait = given(command, "wait", wait)
			if tokenOnly && c.output == "json" {
				return usagef("--token-only and --output json exclude each other")
			}
			return c.runReserve(command.Context(), request, !command.Flags().Changed("attempt-id"), wait, tokenOnly)
		},
	}
	identity.add(command)
	flags := command.Flags()
	flags.StringVar(&fingerprint, "fingerprint", "", "what tells one request from another under the same key, in hex, up to 64 bytes")
	flags.StringVar(&attemptID, "attempt-id", "", "16 bytes in hex; give it only to repeat the attempt that had it (default: drawn)")
	flags.DurationVar(&pendingTTL, "pending-ttl", 0, "how long the reservation holds without a word, 100ms to 24h (default: the server's, 5m)")
	flags.DurationVar(&retention, "retention", 0, "how long the record is kept afterwards, 1s to 720h (default: the server's, 24h)")
	flags.StringVar(&onLapse, "on-lapse", "reopen", "what a silent end means: reopen admits the next, hold admits nobody until it is settled")
	flags.DurationVar(&wait, "wait", 0, "how long to wait while another attempt holds the reservation, up to 60s")
	flags.StringVar(&owner, "owner", "", "what to call this caller, for people")
	flags.BoolVar(&tokenOnly, "token-only", false, "show the token of a grant, and nothing of any other outcome")
	return command
}

func (c *control) runReserve(ctx context.Context, request *coordinatorv1.ReserveRequest, drawn bool, wait time.Duration, tokenOnly bool) error {
	c.waits = wait > 0
	watch := newStopwatch()
	answer, err := callOwning(ctx, c, c.timeout+min(max(0, wait), timeoutMost), watch,
		coordinatorv1.CoordinatorServiceClient.Reserve, request)
	if err != nil {
		return withAttempt(err, request.GetAttemptId())
	}
	if granted := answer.GetGranted(); granted != nil {
		if err := c.checkGrant(ctx, watch, request, granted, drawn); err != nil {
			return err
		}
	}
	shown, code, err := showReserve(answer, request.GetAttemptId())
	if err != nil {
		return withAttempt(err, request.GetAttemptId())
	}
	if tokenOnly {
		if shown.Token != "" {
			_, err = fmt.Fprintln(c.stdout, shown.Token)
		}
		return outcome(withAttempt(c.wrote(err), request.GetAttemptId()), code)
	}
	rows := [][]string{
		{"outcome", shown.Outcome},
		{"token", shown.Token},
		{"fence", number(shown.Fence)},
		{"attempt", number(shown.Attempt)},
		{"attempt id", shown.AttemptID},
		{"repeated", yes(shown.Repeated != nil && *shown.Repeated)},
		{"previous", shown.Previous},
		{"previous reason", text(shown.PreviousReason)},
		{"previous fence", number(shown.PreviousFence)},
		{"owner", text(shown.Owner)},
		{"age", brief(shown.Age)},
		{"remaining", brief(shown.Remaining)},
		{"waited", brief(shown.Waited)},
		{"retry after", brief(shown.RetryAfter)},
	}
	err = c.show(shown, append(rows, responseRows(shown.Response)...))
	return outcome(withAttempt(err, request.GetAttemptId()), code)
}

// outcome is how a command ends that came to an outcome and showed it, or could not.
func outcome(err error, code int) error {
	if err == nil && code != reason.ExitDone {
		return ended{code}
	}
	return err
}

// showReserve returns an answer as it is shown, and its exit code.
func showReserve(answer *coordinatorv1.ReserveResponse, attemptID []byte) (reserveJSON, int, error) {
	switch outcome := answer.GetOutcome().(type) {
	case *coordinatorv1.ReserveResponse_Granted:
		g := outcome.Granted
		repeated, previous := g.GetRepeated(), lease.Told(g.GetPrevious())
		return reserveJSON{
			Outcome: "granted", Token: g.GetToken(), Fence: g.GetFence(), Attempt: g.GetAttempt(),
			Previous:       strings.ToLower(enum(previous.GetEnd(), "PREVIOUS_END_")),
			PreviousReason: previous.GetReason(), PreviousFence: previous.GetFence(),
			Remaining: duration(g.GetRemaining()), Waited: duration(g.GetWaited()), Repeated: &repeated,
			AttemptID: hex.EncodeToString(attemptID),
		}, reason.ExitDone, nil
	case *coordinatorv1.ReserveResponse_Pending:
		p := outcome.Pending
		return reserveJSON{
			Outcome: "pending", Attempt: p.GetAttempt(), Owner: p.GetOwner(), Age: duration(p.GetAge()),
			RetryAfter: duration(p.GetRetryAfter()),
		}, reason.ExitPending, nil
	case *coordinatorv1.ReserveResponse_Committed:
		d := outcome.Committed
		return reserveJSON{
			Outcome: "committed", Age: duration(d.GetAge()), Remaining: duration(d.GetRemaining()),
			Response: showResponse(d.GetResponse(), true),
		}, reason.ExitCommitted, nil
	case *coordinatorv1.ReserveResponse_InDoubt:
		d := outcome.InDoubt
		return reserveJSON{
			Outcome: "in_doubt", Owner: d.GetOwner(), Age: duration(d.GetAge()),
		}, reason.ExitInDoubt, nil
	}
	return reserveJSON{}, 0, notUnderstood("the coordinator gave an outcome that this program does not know, which admits nobody")
}

// withAttempt adds the attempt id to a call that failed, or whose result could not be told.
func withAttempt(err error, attemptID []byte) error {
	switch failed := err.(type) { //nolint:errorlint // it comes as it is
	case callError:
		failed.attempt = attemptID
		return failed
	case localError:
		failed.attempt = attemptID
		return failed
	}
	return err
}

// attempt returns the id that was given, or draws one.
func attempt(command *cobra.Command, text string) ([]byte, error) {
	id := make([]byte, 16)
	if !command.Flags().Changed("attempt-id") {
		_, _ = rand.Read(id) // it cannot fail
		return id, nil
	}
	given, err := decodeHex("attempt-id", text)
	if err == nil && len(given) != len(id) {
		err = usagef("--attempt-id is %s long, it must be %d (%d hex digits)", counted(len(given), "byte"), len(id), 2*len(id))
	}
	return given, err
}

func decodeHex(flag, text string) ([]byte, error) {
	decoded, err := hex.DecodeString(text)
	switch {
	case errors.As(err, new(hex.InvalidByteError)):
		return nil, usagef("--%s is not in hex: there is %q in it", flag, string([]rune(strings.TrimLeft(text, "0123456789abcdefABCDEF"))[:1]))
	case err != nil:
		return nil, usagef("--%s has %s, and two are a byte", flag, counted(len(text), "hex digit"))
	}
	return decoded, nil
}

// counted is so many of something, in words.
func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func parseOnLapse(text string) (coordinatorv1.OnLapse, error) {
	switch text {
	case "reopen":
		return coordinatorv1.OnLapse_ON_LAPSE_REOPEN, nil
	case "hold":
		return coordinatorv1.OnLapse_ON_LAPSE_HOLD, nil
	}
	return 0, usagef("--on-lapse is %q, it must be reopen or hold", text)
}

// given returns nil for a flag that was not given: what is absent is the server's
// default, and what is given as 0 is the server's to refuse.
func given(command *cobra.Command, flag string, value time.Duration) *durationpb.Duration {
	if !command.Flags().Changed(flag) {
		return nil
	}
	return durationpb.New(value)
}
