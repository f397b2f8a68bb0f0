package httpadmit

import (
	"fmt"
	"os"
	"strings"
	"testing"
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
