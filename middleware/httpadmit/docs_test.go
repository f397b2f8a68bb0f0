package httpadmit

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// Every code is in the page that answers link to, with its status and its anchor.
func TestCodesAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	for code, row := range rows() {
		if line := fmt.Sprintf("| <a id=%q></a>`%s` | %d |", string(code), code, row.status); !strings.Contains(string(page), line) {
			t.Errorf("%s is not documented: there is no %q", code, line)
		}
	}
}

// The codes are those that both middlewares answer with, and every one of them has a row.
func TestCodesAreOfTheirNames(t *testing.T) {
	codes := map[refusal.Code]Code{
		refusal.KeyMissing: CodeKeyMissing, refusal.KeyInvalid: CodeKeyInvalid, refusal.PrincipalRequired: CodePrincipalRequired,
		refusal.BodyTooLarge: CodeBodyTooLarge, refusal.BodyUnreadable: CodeBodyUnreadable, refusal.InFlight: CodeInFlight,
		refusal.Mismatch: CodeMismatch, refusal.InDoubt: CodeInDoubt, refusal.Unavailable: CodeUnavailable, refusal.Lost: CodeLost,
		refusal.HandlerTimeout: CodeHandlerTimeout, refusal.ResponseNotStored: CodeResponseNotStored, refusal.Misconfigured: CodeMisconfigured,
	}
	for of, code := range codes {
		if _, has := rows()[code]; !has || string(of) != string(code) {
			t.Errorf("%s is %s, with a row: %v", of, code, has)
		}
	}
	if len(codes) != len(rows()) {
		t.Errorf("%d codes, %d rows", len(codes), len(rows()))
	}
}
