package admit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/atmostonce/coordinator/client"
	"github.com/atmostonce/coordinator/internal/admission"
	"github.com/atmostonce/coordinator/middleware/internal/refusal"
)

// What the coordinator would refuse because of the application's own function is refused
// before it is asked, with the field, its size and its limit; the operator hears of it.
func TestPrincipalThatIsNone(t *testing.T) {
	nobody, err := client.Dial([]string{"127.0.0.1:1"}, client.WithCallTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	var log bytes.Buffer
	s := Defaults(nobody, "")
	s.Logger = slog.New(slog.NewTextHandler(&log, nil))
	ask := func(principal string) (*Attempt, error) {
		return s.Ask(t.Context(), Question{Principal: principal, Operation: "op", Key: "k"})
	}
	for principal, want := range map[string]string{
		strings.Repeat("p", 129):     "the principal has 129 bytes, and may have 128",
		strings.Repeat("p", 1<<20):   "the principal has 1048576 bytes, and may have 128",
		"secret\xff":                 "the principal is not valid UTF-8",
		strings.Repeat("\xff", 1000): "the principal has 1000 bytes, and may have 128",
	} {
		log.Reset()
		attempt, err := ask(principal)
		if r := refused(t, attempt, err, refusal.Misconfigured); r.Detail != want || r.RetryAfter != 0 || r.Executed {
			t.Errorf("%+v, want %q", r, want)
		}
		if said := log.String(); !strings.Contains(said, want) || !strings.Contains(said, "WithPrincipal") || strings.Contains(said, "secret") {
			t.Errorf("the log says %q", said)
		}
	}
	for _, principal := range []string{"", "p", strings.Repeat("p", 128), strings.Repeat("ü", 64)} {
		attempt, err := ask(principal)
		refused(t, attempt, err, refusal.Unavailable) // it was asked
	}
}

// A caller chooses the path of its request, which may be in the operation.
func TestOperationsAreCut(t *testing.T) {
	nobody, err := client.Dial([]string{"127.0.0.1:1"}, client.WithCallTimeout(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	s := Defaults(nobody, "")
	s.Logger = slog.New(slog.DiscardHandler)
	for _, operation := range []string{"a\xff", strings.Repeat("x", 1000)} {
		id := s.identity(Question{Operation: operation})
		if id.Operation != Operation(operation) || id.Operation == operation {
			t.Errorf("%q", id.Operation)
		}
		attempt, err := s.Ask(t.Context(), Question{Operation: operation, Key: "k"})
		refused(t, attempt, err, refusal.Unavailable)
	}
}

// The limits are the contract's.
func TestLimits(t *testing.T) {
	if principalBytesMost != admission.PrincipalBytesMax || operationBytesMost != admission.OperationBytesMax ||
		namespaceBytesMost != admission.NamespaceBytesMax {
		t.Errorf("%d, %d, %d", principalBytesMost, operationBytesMost, namespaceBytesMost)
	}
	for namespace, want := range map[string]string{
		"": "", "desk": "", strings.Repeat("n", 64): "",
		strings.Repeat("n", 65): "the namespace has 65 bytes, and may have 64", "n\xff": "the namespace is not valid UTF-8",
	} {
		s := Defaults(&client.Client{}, "")
		s.Namespace = namespace
		said := ""
		for _, err := range s.Check(true) {
			said += fmt.Sprint(err)
		}
		if said != want {
			t.Errorf("%q: %q, want %q", namespace, said, want)
		}
	}
}
