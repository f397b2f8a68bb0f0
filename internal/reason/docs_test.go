package reason

import (
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
)

// docs/semantics.md shows the table to callers, with several reasons in a row. It
// must name every reason once, with the code and the "applied?" of the code's table.
func TestTheTableIsTheDocumentations(t *testing.T) {
	page, err := os.ReadFile("../../docs/semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "\n| reason |")
	if !found {
		t.Fatal("there is no table of reasons")
	}
	table, _, _ = strings.Cut(table, "\n\n")

	documented := map[Reason]bool{}
	for _, line := range strings.Split(table, "\n")[2:] {
		cells := strings.Split(line, "|")
		if len(cells) < 5 {
			t.Fatalf("not a row of the table: %q", line)
		}
		reasons, code := strings.Split(cells[1], "`"), strings.TrimSpace(cells[2])
		applied := strings.Trim(cells[3], " *")
		if strings.HasPrefix(strings.TrimSpace(cells[1]), "deadline, cancel") {
			// The one row of errors that need not carry a reason.
			reasons = []string{"", string(DeadlineExceeded), "", string(Cancelled)}
			code = "the same"
			if bare := Of(statusError(codes.Unavailable)); bare.Applied.String() != applied {
				t.Errorf("UNAVAILABLE without a reason: applied? %v in the code, %v in the documentation", bare.Applied, applied)
			}
		}
		for i := 1; i < len(reasons); i += 2 {
			name := Reason(reasons[i])
			row := name.Row()
			want := code
			if code == "the same" {
				want = string(name)
			}
			if !name.Known() || CodeName(row.Code) != want || row.Applied.String() != applied || documented[name] {
				t.Errorf("%s: %v, applied? %v in the code; %s, %s in the documentation (seen before: %t)",
					name, CodeName(row.Code), row.Applied, want, applied, documented[name])
			}
			documented[name] = true
		}
	}
	for _, row := range Table() {
		if !documented[row.Reason] {
			t.Errorf("%s is not in the documentation", row.Reason)
		}
	}
}
