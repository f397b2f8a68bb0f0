package grpcadmit

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// name is a code as the page and the protocol write it.
func name(code codes.Code) string {
	if code == codes.OK {
		return "OK"
	}
	if code == codes.Canceled {
		return "CANCELLED"
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(code.String(), "${1}_${2}"))
}

// Every reason is in the page that answers link to, with its code and its anchor, and the
// page's table of statuses is the rule.
func TestDocumented(t *testing.T) {
	content, err := os.ReadFile("../../docs/grpc.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	for reason, row := range rows() {
		if line := fmt.Sprintf("| <a id=%q></a>`%s` | %s |", string(reason), string(reason), name(row.code)); !strings.Contains(page, line) {
			t.Errorf("%s is not documented: there is no %q", reason, line)
		}
	}
	words := map[Verdict]string{Store: "stored", Release: "released", Uncertain: "uncertain"}
	for code := codes.OK; code <= codeHighest; code++ {
		want := fmt.Sprintf("| %s | %s |", words[rule(code, client.Reopen, false)], words[rule(code, client.Hold, false)])
		found := false
		for line := range strings.SplitSeq(page, "\n") {
			found = found || strings.HasPrefix(line, "| `") && strings.Contains(line, "`"+name(code)+"`") && strings.HasSuffix(line, want)
		}
		if !found {
			t.Errorf("%v is not documented as %q", code, want)
		}
		// What had ended is stored or released only by a status that says for certain.
		if ended := rule(code, client.Reopen, true); ended != rule(code, client.Hold, false) {
			t.Errorf("%v from a handler whose context had ended is %v", code, ended)
		}
	}
	if rule(99, client.Reopen, false) != Uncertain {
		t.Error("a code that gRPC does not have is not uncertain")
	}
}

// The reasons are those that both middlewares answer with, and every one of them has a row.
func TestReasonsAreOfTheirNames(t *testing.T) {
	reasons := map[refusal.Code]Reason{
		refusal.KeyMissing: ReasonKeyMissing, refusal.KeyInvalid: ReasonKeyInvalid, refusal.PrincipalRequired: ReasonPrincipalRequired,
		refusal.InFlight: ReasonInFlight, refusal.Mismatch: ReasonMismatch, refusal.InDoubt: ReasonInDoubt,
		refusal.Unavailable: ReasonUnavailable, refusal.Lost: ReasonLost, refusal.HandlerTimeout: ReasonHandlerTimeout,
		refusal.ResponseNotStored: ReasonResponseNotStored, refusal.Misconfigured: ReasonMisconfigured,
	}
	for of, reason := range reasons {
		if _, has := rows()[reason]; !has || string(of) != string(reason) {
			t.Errorf("%s is %s, with a row: %v", of, reason, has)
		}
	}
	if len(reasons) != len(rows()) {
		t.Errorf("%d reasons, %d rows", len(reasons), len(rows()))
	}
}
