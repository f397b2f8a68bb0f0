package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"
	"google.golang.org/grpc/codes"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// bodyBytesMax is more than any node stores; what is larger is not even read.
const bodyBytesMax = 1 << 20

// responseFlags make up a response.
type responseFlags struct {
	code        responseCode
	headers     []string
	contentType string
	body        string
	bodyFile    string
}

var responseFlagNames = [...]string{"code", "header", "content-type", "body", "body-file"}

func (f *responseFlags) add(command *cobra.Command) {
	flags := command.Flags()
	flags.Var(&f.code, "code", fmt.Sprintf("what came of it, 0 to %d: a status of HTTP, an exit status, whatever its readers understand (default 0)", codeMax))
	flags.StringArrayVar(&f.headers, "header", nil, "a header, 'Name: value'; may be repeated, the order is kept")
	flags.StringVar(&f.contentType, "content-type", "", "media type of the body")
	flags.StringVar(&f.body, "body", "", "the body")
	flags.StringVar(&f.bodyFile, "body-file", "", "file with the body, - for stdin; instead of --body")
	mayBeEmpty(flags, "content-type", "body")
}

// codeMax is the highest code that a response can have.
const codeMax = 999

// codeType is what the help text calls the value of --code.
const codeType = "number"

// responseCode is the value of --code.
type responseCode uint32

// Set implements pflag.Value.
func (c *responseCode) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n > codeMax {
		return strconv.ErrRange
	}
	*c = responseCode(n)
	return nil
}

// String implements pflag.Value.
func (c *responseCode) String() string { return strconv.FormatUint(uint64(*c), 10) }

// Type implements pflag.Value.
func (*responseCode) Type() string { return codeType }

// given returns the name of a response flag that was given, or "".
func (f *responseFlags) given(command *cobra.Command) string {
	for _, name := range responseFlagNames {
		if command.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

func (f *responseFlags) response(c *control, command *cobra.Command) (*coordinatorv1.Response, error) {
	response := &coordinatorv1.Response{Code: uint32(f.code), ContentType: f.contentType, Body: []byte(f.body)}
	for _, line := range f.headers {
		name, value, found := strings.Cut(line, ":")
		value = strings.TrimLeft(value, " \t")
		switch {
		case !found || name == "":
			return nil, usagef("--header is %q, it must be 'Name: value'", line)
		case !httpguts.ValidHeaderFieldName(name):
			return nil, usagef("--header has the name %q, which may have letters, digits and !#$%%&'*+-.^_`|~ only", name)
		case !httpguts.ValidHeaderFieldValue(value):
			return nil, usagef("--header has for %s the value %q, which must have no CR, LF, NUL or other control character but the tab", name, value)
		}
		response.Headers = append(response.Headers, &coordinatorv1.Header{Name: name, Value: value})
	}
	if !httpguts.ValidHeaderFieldValue(f.contentType) {
		return nil, usagef("--content-type is %q, it must have no CR, LF, NUL or other control character but the tab", f.contentType)
	}
	if !command.Flags().Changed("body-file") {
		return response, nil
	}
	if command.Flags().Changed("body") {
		return nil, usagef("--body and --body-file exclude each other")
	}
	var err error
	response.Body, err = c.readBody(command.Context(), f.bodyFile)
	return response, err
}

// readBody reads a file, or stdin for "-", of a size that could be stored. Neither hears of a
// signal, so the reader is left alone then.
func (c *control) readBody(ctx context.Context, path string) ([]byte, error) {
	var (
		body []byte
		err  error
		read = make(chan struct{})
	)
	go func() {
		defer close(read)
		body, err = readBody(path, c.stdin)
	}()
	select {
	case <-read:
		return body, err
	case <-ctx.Done():
		return nil, callError{failure: reason.Failure{
			Reason: reason.Cancelled, Code: codes.Canceled, Applied: reason.No, ExitCode: reason.Cancelled.Row().ExitCode,
			Message: "interrupted before the body was read; nothing was sent",
		}}
	}
}

// readBody does so. A file that cannot be read was named wrongly, as far as anybody can tell.
func readBody(path string, stdin io.Reader) ([]byte, error) {
	source := stdin
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, usagef("--body-file: %v", err)
		}
		defer func() { _ = file.Close() }() // it was only read
		source = file
	}
	body, err := io.ReadAll(io.LimitReader(source, bodyBytesMax+1))
	if err != nil {
		return nil, usagef("--body-file: %v", err)
	}
	if len(body) > bodyBytesMax {
		return nil, callError{failure: reason.Failure{
			Reason: reason.ResponseTooLarge, Code: codes.InvalidArgument, Applied: reason.No, ExitCode: reason.ExitUsage,
			Message: fmt.Sprintf("the body is more than %d bytes long, which no node stores", bodyBytesMax),
		}}
	}
	return body, nil
}

// responseJSON is a response as -o json shows it: the body as text where it is UTF-8.
type responseJSON struct {
	Code        uint32       `json:"code"`
	Headers     []headerJSON `json:"headers"`
	ContentType string       `json:"content_type,omitempty"`
	Body        *string      `json:"body,omitempty"`
	BodyBase64  string       `json:"body_base64,omitempty"`
}

type headerJSON struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// showResponse returns nil for no response. withBody is false where the body was
// not asked for: an empty one would be a lie then.
func showResponse(r *coordinatorv1.Response, withBody bool) *responseJSON {
	if r == nil {
		return nil
	}
	shown := &responseJSON{Code: r.GetCode(), ContentType: r.GetContentType(), Headers: []headerJSON{}}
	for _, header := range r.GetHeaders() {
		shown.Headers = append(shown.Headers, headerJSON{Name: header.GetName(), Value: header.GetValue()})
	}
	switch {
	case !withBody:
	case utf8.Valid(r.GetBody()):
		text := string(r.GetBody())
		shown.Body = &text
	default:
		shown.BodyBase64 = base64.StdEncoding.EncodeToString(r.GetBody())
	}
	return shown
}

// responseRows are the rows of a table.
func responseRows(r *responseJSON) [][]string {
	if r == nil {
		return nil
	}
	rows := [][]string{{"response code", fmt.Sprint(r.Code)}}
	for _, header := range r.Headers {
		rows = append(rows, []string{"response header", text(header.Name + ": " + header.Value)})
	}
	if r.ContentType != "" {
		rows = append(rows, []string{"content type", text(r.ContentType)})
	}
	switch {
	case r.Body != nil:
		rows = append(rows, []string{"body", text(*r.Body)})
	case r.BodyBase64 != "":
		rows = append(rows, []string{"body (base64)", r.BodyBase64})
	}
	return rows
}
