package scenario

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the scenarios are part of the package
	"errors"
	"fmt"
	"io"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/atmostonce/coordinator/internal/admission"
)

//go:embed testdata/admission.yaml
var admissionScenarios []byte

// Scenario is one script.
type Scenario struct {
	Name  string `yaml:"name"`
	Live  bool   `yaml:"live"` // short enough to be run in real time
	Steps []Step `yaml:"steps"`
}

// Step is one call and what it must answer, or a movement of time. Exactly one of
// its fields is set, and Expect beside it where something is answered.
type Step struct {
	Reserve *Reserve  `yaml:"reserve"`
	Commit  *Commit   `yaml:"commit"`
	Release *Release  `yaml:"release"`
	Extend  *Extend   `yaml:"extend"`
	Resolve *Resolve  `yaml:"resolve"`
	Get     *Get      `yaml:"get"`
	Purge   *Purge    `yaml:"purge"`
	Start   *Start    `yaml:"start"`
	Finish  *Finish   `yaml:"finish"`
	Advance *Duration `yaml:"advance"`
	Expect  *Expect   `yaml:"expect"`

	line int
}

// Subject names the record of a call: in full, or by the grant whose it is.
type Subject struct {
	Of        string  `yaml:"of"`
	Namespace *string `yaml:"namespace"`
	Principal *string `yaml:"principal"`
	Operation *string `yaml:"operation"`
	Key       *string `yaml:"key"`
}

// Reserve is the call, its attempt and fingerprint as labels.
type Reserve struct {
	Subject     `yaml:",inline"`
	Attempt     string    `yaml:"attempt"`
	Fingerprint string    `yaml:"fingerprint"`
	PendingTTL  *Duration `yaml:"pending_ttl"`
	Retention   *Duration `yaml:"retention"`
	OnLapse     string    `yaml:"on_lapse"`
	Owner       string    `yaml:"owner"`
	Wait        Duration  `yaml:"wait"`
	As          string    `yaml:"as"`
}

// Commit is the call.
type Commit struct {
	Subject   `yaml:",inline"`
	Token     string    `yaml:"token"`
	Response  *Response `yaml:"response"`
	Retention *Duration `yaml:"retention"`
}

// Release is the call.
type Release struct {
	Subject `yaml:",inline"`
	Token   string `yaml:"token"`
	Reason  string `yaml:"reason"`
}

// Extend is the call.
type Extend struct {
	Subject    `yaml:",inline"`
	Token      string    `yaml:"token"`
	PendingTTL *Duration `yaml:"pending_ttl"`
}

// Resolve is the call.
type Resolve struct {
	Subject    `yaml:",inline"`
	RevisionOf string    `yaml:"revision_of"`
	Applied    *bool     `yaml:"applied"`
	Response   *Response `yaml:"response"`
	Note       string    `yaml:"note"`
}

// Get is the call.
type Get struct {
	Subject `yaml:",inline"`
	As      string `yaml:"as"`
}

// Purge is the call.
type Purge struct {
	Subject    `yaml:",inline"`
	RevisionOf string `yaml:"revision_of"`
	Force      bool   `yaml:"force"`
}

// Start begins a Reserve that waits, and goes on once the server holds it.
type Start struct {
	Reserve *Reserve `yaml:"reserve"`
	As      string   `yaml:"as"`
}

// Finish takes the answer of a Reserve that was started.
type Finish struct {
	Of     string    `yaml:"of"`
	Within *Duration `yaml:"within"`
}

// Response is what a Commit stores and everybody gets back.
type Response struct {
	Code        int         `yaml:"code"`
	Headers     [][2]string `yaml:"headers"`
	ContentType string      `yaml:"content_type"`
	Body        string      `yaml:"body"`
}

// Expect is what a call must answer: "ok", the reason of a refusal, or fields.
type Expect struct {
	Reason string `yaml:"-"`

	OK             bool      `yaml:"ok"`
	Outcome        string    `yaml:"outcome"`
	Attempt        *uint32   `yaml:"attempt"`
	Previous       string    `yaml:"previous"`
	PreviousReason *string   `yaml:"previous_reason"`
	Repeated       *bool     `yaml:"repeated"`
	SameGrant      string    `yaml:"same_grant"`
	FenceAbove     string    `yaml:"fence_above"`
	Late           *bool     `yaml:"late"`
	Remaining      *Duration `yaml:"remaining"`
	Response       *Response `yaml:"response"`
	State          string    `yaml:"state"`
}

// All returns the scenarios of testdata/admission.yaml.
func All() ([]Scenario, error) { return Load(bytes.NewReader(admissionScenarios)) }

// Load reads scenarios strictly.
func Load(r io.Reader) ([]Scenario, error) {
	decoder := yaml.NewDecoder(r)
	decoder.KnownFields(true)
	var all []Scenario
	if err := decoder.Decode(&all); err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	names := map[string]bool{}
	for i := range all {
		s := &all[i]
		if s.Name == "" || names[s.Name] {
			return nil, fmt.Errorf("scenario: the name %q is empty or taken", s.Name)
		}
		names[s.Name] = true
		if len(s.Steps) == 0 {
			return nil, fmt.Errorf("scenario: %q has no steps", s.Name)
		}
		for j := range s.Steps {
			if err := s.Steps[j].check(); err != nil {
				return nil, fmt.Errorf("scenario: %q step %d: %w", s.Name, j+1, err)
			}
		}
	}
	return all, nil
}

// Name returns what the step does.
func (s *Step) Name() string {
	for _, action := range s.actions() {
		if action.set {
			return action.name
		}
	}
	return "nothing"
}

type action struct {
	name    string
	set     bool
	answers bool
}

func (s *Step) actions() []action {
	return []action{
		{"reserve", s.Reserve != nil, true},
		{"commit", s.Commit != nil, true},
		{"release", s.Release != nil, true},
		{"extend", s.Extend != nil, true},
		{"resolve", s.Resolve != nil, true},
		{"get", s.Get != nil, true},
		{"purge", s.Purge != nil, true},
		{"start", s.Start != nil, false},
		{"finish", s.Finish != nil, true},
		{"advance", s.Advance != nil, false},
	}
}

func (s *Step) check() error {
	count, answers := 0, false
	for _, action := range s.actions() {
		if action.set {
			count++
			answers = action.answers
		}
	}
	switch {
	case count != 1:
		return fmt.Errorf("has %d actions, it must have one", count)
	case answers != (s.Expect != nil):
		return errors.New("a call must come with what it is expected to answer, and nothing else may")
	case s.Advance != nil && *s.Advance <= 0:
		return errors.New("time only goes forward")
	case s.Commit != nil && s.Commit.Response == nil:
		return errors.New("a commit without a response")
	case s.Resolve != nil && (s.Resolve.Applied == nil || *s.Resolve.Applied != (s.Resolve.Response != nil)):
		return errors.New("a settlement says whether it was applied, and with which response if so")
	case s.Start != nil && (s.Start.Reserve == nil || s.Start.As == "" || s.Start.Reserve.Wait <= 0):
		return errors.New("a start needs a reserve that waits, and a label")
	case s.Finish != nil && (s.Finish.Of == "" || s.Finish.Within == nil):
		return errors.New("a finish needs a label and a time within")
	}
	return nil
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (s *Step) UnmarshalYAML(node *yaml.Node) error {
	type plain Step
	if err := strictly(node, (*plain)(s)); err != nil {
		return err
	}
	s.line = node.Line
	return nil
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (e *Expect) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		if node.Value == "ok" {
			e.OK = true
			return nil
		}
		if node.Value == "" {
			return fmt.Errorf("line %d: an empty expectation", node.Line)
		}
		e.Reason = node.Value
		return nil
	}
	type plain Expect
	if err := strictly(node, (*plain)(e)); err != nil {
		return err
	}
	given := 0
	for _, set := range []bool{e.OK, e.Outcome != "", e.State != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		return fmt.Errorf("line %d: an expectation is ok, an outcome or a state", node.Line)
	}
	return nil
}

// strictly decodes a node; its own Decode would let unknown fields pass.
func strictly(node *yaml.Node, into any) error {
	text, err := yaml.Marshal(node)
	if err != nil {
		return err
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("step at line %d: %w", node.Line, err)
	}
	return nil
}

// identity returns the identity that the subject names in full.
func (s Subject) identity(namespace func(string) string) (admission.Identity, error) {
	if s.Key == nil {
		return admission.Identity{}, errors.New("neither a key nor a grant is named")
	}
	part := func(given *string, otherwise string) string {
		if given == nil {
			return otherwise
		}
		return *given
	}
	return admission.Identity{
		Namespace: namespace(part(s.Namespace, admission.DefaultNamespace)),
		Principal: part(s.Principal, "p"),
		Operation: part(s.Operation, "op"),
		Key:       *s.Key,
	}, nil
}

// AttemptOf returns the attempt id that a label stands for.
func AttemptOf(label string) admission.AttemptID {
	sum := sha256.Sum256([]byte("attempt " + label))
	return admission.AttemptID(sum[:16])
}

// FingerprintOf returns the fingerprint that a label stands for; no label, none.
func FingerprintOf(label string) []byte {
	if label == "" {
		return nil
	}
	sum := sha256.Sum256([]byte("fingerprint " + label))
	return sum[:]
}

func (d *Duration) pointer() *time.Duration { return (*time.Duration)(d) }
