package reason

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Invariant 1: every reason of the rules and of this package has one row. The names
// are read from the sources, so that a new one cannot be forgotten here.
func TestTheTableIsComplete(t *testing.T) {
	declared := map[string]bool{}
	for _, source := range []string{"../admission/reason.go", "table.go"} {
		for _, name := range reasonsDeclared(t, source) {
			declared[name] = true
		}
	}
	if len(declared) < 20 {
		t.Fatalf("only %d reasons were found in the sources", len(declared))
	}
	rows := map[string]int{}
	for _, row := range Table() {
		rows[string(row.Reason)]++
		if row.Meaning == "" || row.Advice == "" || row.HTTPStatus < 400 || row.ExitCode < 1 || row.ExitCode > 10 ||
			row.Code == codes.OK || row.Code == codes.Unknown || row.Code == codes.Internal {
			t.Errorf("the row of %s is not filled in: %+v", row.Reason, row)
		}
	}
	for name := range declared {
		if rows[name] != 1 {
			t.Errorf("%s has %d rows", name, rows[name])
		}
	}
	for name := range rows {
		if !declared[name] {
			t.Errorf("%s is in the table and declared nowhere", name)
		}
	}
}

// reasonsDeclared returns the values of the constants of type Reason in a file.
func reasonsDeclared(t *testing.T, path string) (names []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			return true
		}
		for _, value := range spec.Values {
			if literal, ok := value.(*ast.BasicLit); ok {
				if name, _ := strconv.Unquote(literal.Value); name != "" {
					names = append(names, name)
				}
			}
		}
		return true
	})
	return names
}

// The contract's table, column by column where it is explicit.
func TestTheTableIsTheContracts(t *testing.T) {
	for name, want := range map[Reason]struct {
		code    codes.Code
		applied Applied
		exit    int
	}{
		InvalidArgument:     {codes.InvalidArgument, No, 2},
		ResponseTooLarge:    {codes.InvalidArgument, No, 2},
		FingerprintMismatch: {codes.FailedPrecondition, No, 6},
		ReservationLost:     {codes.FailedPrecondition, No, 7},
		ReservationLapsed:   {codes.FailedPrecondition, No, 7},
		ReservationNotFound: {codes.NotFound, No, 7},
		CommitConflict:      {codes.FailedPrecondition, No, 7},
		AlreadyCommitted:    {codes.FailedPrecondition, No, 7},
		AlreadyReleased:     {codes.FailedPrecondition, No, 7},
		NotInDoubt:          {codes.FailedPrecondition, No, 7},
		NotPurgeable:        {codes.FailedPrecondition, No, 7},
		RevisionMismatch:    {codes.FailedPrecondition, No, 7},
		AttemptEnded:        {codes.FailedPrecondition, No, 7},
		NoLeader:            {codes.Unavailable, No, 8},
		ShuttingDown:        {codes.Unavailable, No, 8},
		OutcomeUnknown:      {codes.Unavailable, Maybe, 8},
		Overloaded:          {codes.ResourceExhausted, No, 9},
		StorageFull:         {codes.ResourceExhausted, No, 9},
		QuotaExceeded:       {codes.ResourceExhausted, No, 9},
		Unauthenticated:     {codes.Unauthenticated, No, 10},
		PermissionDenied:    {codes.PermissionDenied, No, 10},
		DeadlineExceeded:    {codes.DeadlineExceeded, Maybe, 8},
		Cancelled:           {codes.Canceled, Maybe, 8},
	} {
		row := name.Row()
		if row.Code != want.code || row.Applied != want.applied || row.ExitCode != want.exit {
			t.Errorf("%s: %v, %v, exit %d; want %v, %v, exit %d",
				name, row.Code, row.Applied, row.ExitCode, want.code, want.applied, want.exit)
		}
	}
}

func TestErrorsAreReadBack(t *testing.T) {
	for _, row := range Table() {
		for _, err := range []error{Error(row.Reason, ""), fmt.Errorf("wrapped: %w", Error(row.Reason, ""))} {
			got := Of(err)
			if got.Reason != row.Reason || !got.Info || got.Code != row.Code || got.Applied != row.Applied ||
				got.ExitCode != row.ExitCode || got.HTTPStatus != row.HTTPStatus || got.RetryAfter != row.RetryAfter {
				t.Errorf("%s was read back as %+v", row.Reason, got)
			}
		}
		if CodeName(row.Code) == "" || strings.ToUpper(CodeName(row.Code)) != CodeName(row.Code) {
			t.Errorf("code %v has the name %q", row.Code, CodeName(row.Code))
		}
	}
	got := Of(Violation(InvalidArgument, "identity.key", "must not be empty"))
	if len(got.Violations) != 1 || got.Violations[0] != (FieldViolation{"identity.key", "must not be empty"}) {
		t.Errorf("violations: %v", got.Violations)
	}
}

// Invariants 2 and 3: an error of another origin is read, and promises no more than
// is certain.
func TestErrorsOfOtherOrigins(t *testing.T) {
	foreign, err := status.New(codes.FailedPrecondition, "x").WithDetails(&errdetails.ErrorInfo{Reason: "NO_LEADER", Domain: "elsewhere"})
	if err != nil {
		t.Fatal(err)
	}
	newer, err := status.New(codes.FailedPrecondition, "x").WithDetails(&errdetails.ErrorInfo{Reason: "NEWER", Domain: Domain})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		err  error
		want Failure
	}{
		{"nothing", nil, Failure{}},
		{"no status", errors.New("x"), Failure{Code: codes.Unknown, Message: "x", Applied: Maybe, ExitCode: 1, HTTPStatus: 500}},
		{"deadline", context.DeadlineExceeded, Failure{Reason: DeadlineExceeded, Code: codes.DeadlineExceeded,
			Message: "context deadline exceeded", Applied: Maybe, ExitCode: 8, HTTPStatus: 504}},
		{"cancel", fmt.Errorf("x: %w", context.Canceled), Failure{Reason: Cancelled, Code: codes.Canceled,
			Message: "x: context canceled", Applied: Maybe, ExitCode: 8, HTTPStatus: 499}},
		{"bare unavailable", status.Error(codes.Unavailable, "x"), Failure{Code: codes.Unavailable, Message: "x",
			Applied: Maybe, ExitCode: 8, HTTPStatus: 503}},
		{"bare denial", status.Error(codes.PermissionDenied, "x"), Failure{Reason: PermissionDenied, Code: codes.PermissionDenied,
			Message: "x", Applied: No, ExitCode: 10, HTTPStatus: 403}},
		{"another domain", foreign.Err(), Failure{Code: codes.FailedPrecondition, Message: "x", Applied: Maybe, ExitCode: 1, HTTPStatus: 409}},
		{"a newer server", newer.Err(), Failure{Reason: "NEWER", Info: true, Code: codes.FailedPrecondition, Message: "x",
			Applied: Maybe, ExitCode: 1, HTTPStatus: 409}},
	} {
		got := Of(test.err)
		if fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", test.name, got, test.want)
		}
	}
}

func statusError(c codes.Code) error { return status.Error(c, "x") }

func ExampleWriteMarkdown() {
	var table strings.Builder
	if err := WriteMarkdown(&table); err != nil {
		panic(err)
	}
	for _, line := range strings.Split(table.String(), "\n")[:4] {
		fmt.Println(line)
	}
	// Output:
	// | reason | gRPC code | applied? | meaning | caller should | HTTP | exit |
	// |---|---|---|---|---|---|---|
	// | `INVALID_ARGUMENT` | INVALID_ARGUMENT | no | an argument is not valid | fix the call | 400 | 2 |
	// | `RESPONSE_TOO_LARGE` | INVALID_ARGUMENT | no | the response is too large | commit without the body | 413 | 2 |
}
