package main

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

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
type localError struct{ err error }

func (e localError) Error() string { return e.err.Error() }

// callError is what a server answered, or what became of asking one.
type callError struct {
	failure reason.Failure
	// attempt is the attempt id of a Reserve, which a retry by hand must give.
	attempt []byte
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
	switch {
	case err == nil:
		return reason.ExitDone
	case errors.As(err, &outcome):
		return outcome.code
	case errors.As(err, &call):
		c.reportCall(call)
		return call.failure.ExitCode
	case errors.As(err, &local):
		c.complain(oneLine(local.Error()))
		return reason.ExitFailure
	default:
		// Everything else is the command line: ours, or as cobra sees it.
		c.complain(oneLine(err.Error()))
		return reason.ExitUsage
	}
}

// complain writes one line to stderr. Where that fails there is nobody to tell; the
// exit code still says what happened.
func (c *control) complain(line string) { _, _ = fmt.Fprintf(c.stderr, "coordctl: %s\n", line) }

func (c *control) reportCall(call callError) {
	f := call.failure
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
		_ = writeJSON(c.stderr, map[string]errorJSON{"error": shown})
		return
	}
	text := name + ": " + oneLine(f.Message)
	if f.Applied == reason.Maybe {
		text += " (it may have been carried out)"
	}
	if attempt != "" {
		text += "; to ask again as the same attempt: --attempt-id " + attempt
	}
	c.complain(text)
}

// oneLine keeps an error on one line, and control characters off the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(strings.TrimSpace(text), "\uFFFD"))
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}
