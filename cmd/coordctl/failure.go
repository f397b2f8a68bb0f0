package main

import (
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/internal/oneline"
	"github.com/atmostonce/coordinator/internal/reason"
)

// ended is a command that came to an outcome other than 0, and has shown it.
type ended struct{ code int }

func (e ended) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// usageError is a command line that makes no sense.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, arguments ...any) error {
	return usageError{text: fmt.Sprintf(format, arguments...)}
}

// localError is a failure on this side: a file that cannot be read, a full stdout.
type localError struct {
	err error
	// called says that a call was made and has had its effect, of which the result
	// could not be told.
	called bool
	// attempt is that of a Reserve, with which it can be asked for its result again.
	attempt []byte
	// exit is the exit code; 0: that of a failure.
	exit int
}

func (e localError) Error() string { return e.err.Error() }

// callError is what a server answered, or what became of asking one.
type callError struct {
	failure reason.Failure
	// attempt is the attempt id of a Reserve, which a retry by hand must give.
	attempt []byte
	// told says that the message tells what is not known, and what to do.
	told bool
	// exit is the exit code; 0: the failure's own.
	exit int
}

func (e callError) Error() string { return e.failure.Message }

// errorJSON is how -o json shows a failure.
type errorJSON struct {
	Reason     string      `json:"reason"`
	Code       string      `json:"code"`
	Message    string      `json:"message"`
	Applied    string      `json:"applied"`
	Fields     []fieldJSON `json:"fields,omitempty"`
	RetryAfter string      `json:"retry_after,omitempty"`
	AttemptID  string      `json:"attempt_id,omitempty"`
}

type fieldJSON struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// report says on stderr what went wrong and returns the exit code.
func (c *control) report(err error) int {
	var (
		outcome ended
		call    callError
		local   localError
	)
	if c.signals != nil {
		defer c.signals.lastWords()()
	}
	c.settleNotes()
	switch {
	case err == nil:
		return reason.ExitDone
	case errors.As(err, &outcome):
		return outcome.code
	case errors.As(err, &call):
		c.reportCall(call)
		return cmp.Or(call.exit, call.failure.ExitCode+c.exitOffset)
	case errors.As(err, &local):
		c.reportLocal(local)
		return cmp.Or(local.exit, reason.ExitFailure+c.exitOffset)
	default:
		// Everything else is the command line: ours, or as cobra sees it.
		if c.output == "json" || asksForJSON(c.arguments) {
			c.complainJSON(errorJSON{
				Reason: usageReason, Code: reason.CodeName(codes.InvalidArgument), Message: oneline.Of(err.Error()), Applied: reason.No.String(),
			})
		} else {
			c.complain(err.Error())
		}
		return reason.ExitUsage + c.exitOffset
	}
}

// What errors that are no answer have for a reason in JSON. They are told apart from
// those of the table, since no server gave them.
const (
	usageReason = "USAGE"
	localReason = "LOCAL_FAILURE"
)

// asksForJSON reports whether a command line wants -o json. It is for one that could not
// be parsed to its end.
func asksForJSON(arguments []string) bool {
	for i, argument := range arguments {
		switch argument {
		case "--":
			return false
		case "-o", "--output":
			if i+1 < len(arguments) && arguments[i+1] == "json" {
				return true
			}
		case "-ojson", "-o=json", "--output=json":
			return true
		}
	}
	return false
}

func (c *control) reportLocal(local localError) {
	applied, attempt := reason.No, ""
	if local.called {
		applied, attempt = reason.Maybe, hex.EncodeToString(local.attempt)
	}
	message := oneline.Of(local.Error())
	if c.output == "json" {
		c.complainJSON(errorJSON{
			Reason: localReason, Code: reason.CodeName(codes.Unknown), Message: message, Applied: applied.String(), AttemptID: attempt,
		})
		return
	}
	c.complain(message + again(attempt))
}

// again says how a Reserve gets its own answer, or another.
func again(attempt string) string {
	if attempt == "" {
		return ""
	}
	return "; to ask again as the same attempt: --attempt-id " + attempt
}

// complainJSON writes an error as -o json shows it.
func (c *control) complainJSON(shown errorJSON) {
	_ = writeJSON(c.stderr, map[string]errorJSON{"error": shown})
}

// complain writes one line to stderr, whatever is in it. Where that fails there is nobody to
// tell; the exit code still says what happened.
func (c *control) complain(line string) {
	_, _ = fmt.Fprintf(c.stderr, "coordctl: %s\n", oneline.Of(line))
}

func (c *control) reportCall(call callError) {
	f := call.failure
	f.Message = c.typed(f)
	// Only who does not know the outcome needs the attempt id again.
	attempt := ""
	if f.Applied == reason.Maybe || f.ExitCode == reason.ExitUnavailable {
		attempt = hex.EncodeToString(call.attempt)
	}
	name := string(f.Reason)
	if name == "" {
		name = reason.CodeName(f.Code)
	}
	if c.output == "json" {
		shown := errorJSON{
			Reason: name, Code: reason.CodeName(f.Code), Message: f.Message,
			Applied: f.Applied.String(), AttemptID: attempt,
		}
		for _, v := range f.Violations {
			shown.Fields = append(shown.Fields, fieldJSON(v))
		}
		if f.RetryAfter > 0 {
			shown.RetryAfter = f.RetryAfter.String()
		}
		c.complainJSON(shown)
		return
	}
	text := name + ": " + strings.TrimSpace(f.Message)
	if f.Applied == reason.Maybe && !call.told {
		if f.Reason != reason.OutcomeUnknown { // whose message says it
			text += "; coordctl does not know whether the coordinator carried the call out"
		}
		if attempt == "" {
			text += ": the same command again is safe, and is answered with the truth"
		}
	}
	c.complain(text + again(attempt))
}

// typed is a failure's message in the words of the command line: the coordinator names fields and
// never says what was given, and people have typed arguments and flags.
func (c *control) typed(f reason.Failure) string {
	if f.Reason == reason.NotPurgeable {
		return strings.Replace(f.Message, "only force purges", "only --force purges", 1)
	}
	if c.command == nil || len(f.Violations) != 1 {
		return f.Message
	}
	field := f.Violations[0].Field
	rest, is := strings.CutPrefix(f.Message, field+" ")
	if !is {
		return f.Message
	}
	flags := c.command.Flags()
	switch name := strings.ReplaceAll(strings.TrimPrefix(field, "identity."), "_", "-"); {
	case field == "node_id" && len(c.given) == 1:
		return fmt.Sprintf("NODE %q %s", c.given[0], rest)
	case field == "to_node" && flags.Changed("to"):
		return fmt.Sprintf("--to %q %s", flags.Lookup("to").Value.String(), rest)
	case flags.Changed(name):
		return "--" + name + " " + rest
	case field == "identity.key":
		return "KEY " + rest
	}
	return f.Message
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
