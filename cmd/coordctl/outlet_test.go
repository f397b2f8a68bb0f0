package main

import (
	"bytes"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/reason"
)

// stuck is an output that takes nothing, and says when there is something to take.
type stuck struct {
	asked chan struct{}
	never chan struct{}
}

func newStuck(t *testing.T) *stuck {
	s := &stuck{asked: make(chan struct{}, 1), never: make(chan struct{})}
	t.Cleanup(func() { close(s.never) })
	return s
}

func (s *stuck) Write([]byte) (int, error) {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-s.never
	return 0, io.ErrClosedPipe
}

// What this program says begins a line, also behind what it has passed on, and adds nothing to that.
func TestWhatIsSaidBeginsALine(t *testing.T) {
	for _, test := range []struct{ script, want string }{
		{"", "said\nsaid\n"},
		{"a", "a\nsaid\nsaid\n"},
		{"a\n", "a\nsaid\nsaid\n"},
		{"a\n,b", "a\nb\nsaid\nsaid\n"},
		{"a,\n", "a\nsaid\nsaid\n"},
	} {
		for name, passed := range map[string]func(io.Writer) io.Writer{"live": live, "replayed": replayed} {
			var to bytes.Buffer
			o := &outlet{to: &to, signals: newSignals()}
			for piece := range strings.SplitSeq(test.script, ",") {
				if n, err := passed(o).Write([]byte(piece)); n != len(piece) || err != nil {
					t.Errorf("%s %q: wrote %d, %v", name, piece, n, err)
				}
			}
			for range 2 {
				if n, err := io.WriteString(o, "said\n"); n != len("said\n") || err != nil {
					t.Errorf("%s %q: wrote %d, %v", name, test.script, n, err)
				}
			}
			if to.String() != test.want {
				t.Errorf("%s %q: %q, want %q", name, test.script, to.String(), test.want)
			}
		}
	}
}

// One signal is enough where nobody takes what a command has to say: it is not waited for any longer,
// and what has become of the call is told where that can be told.
func TestASignalWhereNobodyTakesTheOutput(t *testing.T) {
	committed := func(int) (*coordinatorv1.ReserveResponse, error) {
		return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Committed{Committed: &coordinatorv1.Committed{
			Response: &coordinatorv1.Response{Code: 4, Body: []byte("before")},
		}}}, nil
	}
	pending := func(int) (*coordinatorv1.ReserveResponse, error) {
		return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Pending{Pending: &coordinatorv1.Pending{}}}, nil
	}
	const unwritten = "the call was answered, but the result cannot be written: nobody took it in time"
	for line, test := range map[string]struct {
		reserve func(int) (*coordinatorv1.ReserveResponse, error)
		stderr  bool // nobody takes that, and not stdout
		code    int
		want    string
	}{
		"reserve k":                        {grantedBy, false, 1, unwritten + "; to ask again as the same attempt: --attempt-id "},
		"reserve k -o json":                {grantedBy, false, 1, `"applied":"maybe","attempt_id":"`},
		"records":                          {nil, false, 1, unwritten},
		"status":                           {nil, false, 1, unwritten},
		"--help":                           {nil, false, 1, "coordctl: the text cannot be written: nobody took it in time\n"},
		"help get":                         {nil, false, 1, "coordctl: the text cannot be written: nobody took it in time\n"},
		"--version":                        {nil, false, 1, "coordctl: the text cannot be written: nobody took it in time\n"},
		"run --key k -- true":              {committed, false, 101, "coordctl: it ran before and ended with 4, but its output cannot be written: nobody took it in time\n"},
		"run --key k --no-wait -- true":    {pending, true, 3, ""},
		"get -x":                           {nil, true, 2, ""},
		"run -v --key k --no-wait -- true": {pending, true, 3, ""},
	} {
		t.Run(line, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				var said bytes.Buffer
				nobody := newStuck(t)
				w := world{dial: reach, stdin: strings.NewReader(""), stdout: nobody, stderr: &said, signals: newSignals()}
				if test.stderr {
					w.stdout, w.stderr = &said, nobody
				}
				w.environment = []string{variableOf(endpointsFlag) + "=" + serve(t, &stub{reserve: test.reserve, pages: 1})}
				ended := make(chan int, 1)
				go func() { ended <- run(t.Context(), w, strings.Fields(line)) }()
				<-nobody.asked
				w.signals.come <- syscall.SIGTERM
				select {
				case code := <-ended:
					if code != test.code || !strings.Contains(said.String(), test.want) || strings.Count(said.String(), "\n") > 1 {
						t.Errorf("exit code %d, %q", code, &said)
					}
				case <-time.After(30 * time.Second):
					t.Error("it goes on")
				}
			})
		})
	}
}

// Help that cannot be written is a failure as any other result is, and none of the command line.
func TestHelpThatCannotBeWritten(t *testing.T) {
	for _, line := range []string{"--help", "help", "get --help", "help get", "--version", "run --help", "--help get"} {
		var said bytes.Buffer
		w := world{dial: reach, stdin: strings.NewReader(""), stdout: full{}, stderr: &said}
		code := run(t.Context(), w, strings.Fields(line))
		if code != reason.ExitFailure || said.String() != "coordctl: the text cannot be written: no space\n" {
			t.Errorf("%s: exit code %d, %q", line, code, &said)
		}
	}
}
