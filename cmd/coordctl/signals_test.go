package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/atmostonce/coordinator/client"
	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/lease"
	"github.com/atmostonce/coordinator/internal/reason"
	"github.com/atmostonce/coordinator/internal/stopsignal"
)

func (s *stub) Release(ctx context.Context, request *coordinatorv1.ReleaseRequest) (*coordinatorv1.ReleaseResponse, error) {
	s.mu.Lock()
	s.releases = append(s.releases, request)
	s.mu.Unlock()
	if s.release == nil {
		return &coordinatorv1.ReleaseResponse{}, nil
	}
	return &coordinatorv1.ReleaseResponse{}, s.release(ctx)
}

func (s *stub) Extend(ctx context.Context, _ *coordinatorv1.ExtendRequest) (*coordinatorv1.ExtendResponse, error) {
	answer := &coordinatorv1.ExtendResponse{Remaining: durationpb.New(time.Minute)}
	if s.extended != nil {
		answer.Remaining = durationpb.New(*s.extended)
	}
	return answer, s.extend(ctx)
}

func grantedForAMinute(int) (*coordinatorv1.ReserveResponse, error) {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: "T", Fence: 1, Remaining: durationpb.New(time.Minute),
	}}}, nil
}

// hearing hears the signals that are put into a channel.
func hearing(come chan os.Signal) *signals {
	s := newSignals()
	s.come = come
	return s
}

// A run that was admitted after a lapse, and started nothing, tells the next owner of that lapse.
func TestALapseOutlivesARunThatStartedNothing(t *testing.T) {
	leakless(t)
	const lapsed = 7
	s := &stub{reserve: func(int) (*coordinatorv1.ReserveResponse, error) {
		answer, err := grantedForAMinute(0)
		answer.GetGranted().Previous = &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_LAPSED, Fence: lapsed}
		return answer, err
	}}
	signals := make(chan os.Signal, signalsMost)
	signals <- syscall.SIGTERM
	if code, stderr := runSignalled(t, s, signals, "--", "true"); code != exitSignalled+int(syscall.SIGTERM) || len(s.releases) != 1 {
		t.Fatalf("exit code %d, %q, released %d times", code, stderr, len(s.releases))
	}
	next := &coordinatorv1.Previous{End: coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED, Fence: lapsed + 1, Reason: s.releases[0].GetReason()}
	if lapse := lease.LapseBefore(next); lapse != lapsed {
		t.Errorf("the next owner is told %q, of the lapse %d", next.GetReason(), lapse)
	}
}

// Who reserves by hand is told of a lapse past attempts that nobody acted on, as the Go client is.
func TestReserveTellsOfALapsePastAttemptsThatNobodyActedOn(t *testing.T) {
	s := &stub{reserve: func(int) (*coordinatorv1.ReserveResponse, error) {
		answer, err := grantedForAMinute(0)
		answer.GetGranted().Previous = &coordinatorv1.Previous{
			End: coordinatorv1.PreviousEnd_PREVIOUS_END_RELEASED, Fence: 8, Reason: lease.Unused(lease.GoneBy, 7),
		}
		return answer, err
	}}
	code, stdout, stderr := in(t, nil, "reserve", "k", "--endpoints", serve(t, s), "-o", "json")
	var shown reserveJSON
	if err := json.Unmarshal([]byte(stdout), &shown); err != nil || code != 0 {
		t.Fatalf("exit code %d, %s, %v", code, stderr, err)
	}
	if shown.Previous != "lapsed" || shown.PreviousFence != 7 || shown.PreviousReason != "" {
		t.Errorf("the attempt before: %s, fence %d, %q", shown.Previous, shown.PreviousFence, shown.PreviousReason)
	}
}

// runSignalled is `coordctl run` that gets signals.
func runSignalled(t *testing.T, s *stub, come chan os.Signal, arguments ...string) (code int, stderr string) {
	t.Helper()
	var said bytes.Buffer
	w := world{dial: reach, stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &said, signals: hearing(come)}
	code = run(t.Context(), w, append([]string{"run", "--endpoints", serve(t, s), "--key", "k"}, arguments...))
	return code, said.String()
}

// A signal that came before this program listened as a run does is one before the start.
func TestASignalFromBeforeIsHeard(t *testing.T) {
	leakless(t)
	started := filepath.Join(t.TempDir(), "started")
	for which, name := range map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGINT: "SIGINT"} {
		released := 0
		s := &stub{reserve: grantedForAMinute, release: func(context.Context) error { released++; return nil }}
		signals := make(chan os.Signal, signalsMost)
		signals <- which
		code, stderr := runSignalled(t, s, signals, "--", "touch", started)
		if want := "coordctl: received " + name + "; the command was not started\n"; code != exitSignalled+int(which) || stderr != want || released != 1 {
			t.Errorf("exit code %d, %q, released %d times", code, stderr, released)
		}
	}
	if _, err := os.Stat(started); err == nil {
		t.Error("the command was started")
	}
}

// With -o json it is told as every other failure: by one object, and not by a line.
func TestASignalBeforeTheStartInJSON(t *testing.T) {
	leakless(t)
	s := &stub{reserve: grantedForAMinute}
	signals := make(chan os.Signal, signalsMost)
	signals <- syscall.SIGTERM
	code, stderr := runSignalled(t, s, signals, "-o", "json", "--", "true")
	var told struct{ Error errorJSON }
	if err := json.Unmarshal([]byte(stderr), &told); err != nil || code != 143 || told.Error.Applied != reason.No.String() ||
		told.Error.Message != "received SIGTERM; the command was not started" {
		t.Errorf("exit code %d, %q, %v", code, stderr, err)
	}
}

// What is no failure is told in objects, too: nobody who reads JSON comes upon a line of text.
func TestNotesInJSON(t *testing.T) {
	leakless(t)
	denied := reason.Error(reason.PermissionDenied, "")
	s := &stub{release: func(context.Context) error { return denied }}
	r, reservation, said := reserved(t, s, time.Minute)
	r.output = "json"
	kept := newCapture()
	kept.add(streamStderr, []byte("text"))
	kept.cutOff(errUntaken)
	r.tellBefore(kept, "another\nline")
	if code := r.report(r.interrupted(reservation, syscall.SIGTERM)); code != 143 {
		t.Errorf("exit code %d", code)
	}
	const want = `{"note":{"message":"not all of the command's stderr could be passed on: nobody took it in time"}}
{"note":{"message":"another; line"}}
{"note":{"message":"the key could not be released, and stays taken until it lapses: the caller is not allowed to do this"}}
{"error":{"reason":"LOCAL_FAILURE","code":"UNKNOWN","message":"received SIGTERM; the command was not started","applied":"no"}}
`
	if said.String() != want {
		t.Errorf("%s", said)
	}
	var progress string
	virtually(t, func(t *testing.T) {
		_, _, progress = bench(t, t.Context(), "pairs", "--endpoints", serve(t, paced()), "--duration", "3s")
	})
	for line := range strings.Lines(progress) {
		if !strings.HasPrefix(line, `{"note":{"message":"`) {
			t.Errorf("%q", line)
		}
	}
	if progress == "" {
		t.Error("no progress was shown")
	}
}

// slowReader is an output that takes something for each time that it is told to.
type slowReader struct {
	takes chan struct{}
	took  []string
}

func (s *slowReader) Write(text []byte) (int, error) {
	<-s.takes
	s.took = append(s.took, string(text))
	return len(text), nil
}

// An error is the last line, also where the notes before it are taken so slowly that they are not
// waited for.
func TestNothingFollowsAnError(t *testing.T) {
	virtually(t, func(t *testing.T) {
		reader := &slowReader{takes: make(chan struct{}, 2)}
		c := &control{world: world{stderr: &outlet{to: reader, signals: newSignals()}}}
		c.note("first")
		c.note("second")
		written := c.notes.written
		c.settleNotes() // they are not waited for
		close(reader.takes)
		<-written
		c.report(localError{err: errUntaken})
		if want := []string{"coordctl: first\n", "coordctl: " + errUntaken.Error() + "\n"}; !slices.Equal(reader.took, want) {
			t.Errorf("%q", reader.took)
		}
	})
}

// reserved is a run that was admitted, and its reservation.
func reserved(t *testing.T, s *stub, timeout time.Duration) (*runner, *client.Reservation, *bytes.Buffer) {
	t.Helper()
	s.reserve = grantedForAMinute
	said := &bytes.Buffer{}
	r := &runner{
		control: &control{
			endpoints: []string{serve(t, s)}, timeout: timeout,
			world: world{stderr: said, signals: newSignals()}, contacts: contacts{through: reach},
		},
		flags:     &runFlags{settle: settleDefault},
		arguments: []string{"c"},
	}
	if err := r.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.client.Close() })
	reservation, err := r.client.Reserve(t.Context(), client.Identity{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	return r, reservation, said
}

// What is given back because nothing was started has the time of one call, whatever
// recording may take, and a second signal does not wait for it.
func TestGivingBackIsBounded(t *testing.T) {
	interrupted := func(r *runner, reservation *client.Reservation) error {
		return r.interrupted(reservation, syscall.SIGTERM)
	}
	unstarted := func(r *runner, reservation *client.Reservation) error {
		return r.settle(reservation, ending{unstarted: exec.ErrNotFound}, newCapture())
	}
	for name, test := range map[string]struct {
		end     func(*runner, *client.Reservation) error
		timeout time.Duration
		signals int // while it is given back
		code    int
		why     string
	}{
		"no answer, after a signal": {interrupted, time.Second, 0, 143, "no answer from NODE in time\n"},
		"no answer, not started":    {unstarted, time.Second, 0, exitNotFound, "no answer from NODE in time\n"},
		"a signal after the first":  {interrupted, time.Minute, 1, 143, "interrupted (no answer from NODE)\n"},
		"two signals, not started":  {unstarted, time.Minute, 2, exitNotFound, "interrupted (no answer from NODE)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				var r *runner
				s := &stub{release: func(ctx context.Context) error {
					for range test.signals {
						r.signals.come <- syscall.SIGTERM
					}
					<-ctx.Done()
					return ctx.Err()
				}}
				var (
					reservation *client.Reservation
					said        *bytes.Buffer
				)
				r, reservation, said = reserved(t, s, test.timeout)
				began := time.Now()
				code, took := r.report(test.end(r, reservation)), time.Since(began)
				want := "coordctl: it is not known whether the key was released; if not, it stays taken until it lapses: " + strings.ReplaceAll(test.why, "NODE", r.endpoints[0])
				if code != test.code || !strings.HasPrefix(said.String(), want) || took > time.Second {
					t.Errorf("exit code %d after %v, %q", code, took, said)
				}
			})
		})
	}
}

// A second signal does not wait for the answer to Reserve, and says what that may leave behind.
func TestTwoSignalsDoNotWaitForReserve(t *testing.T) {
	leakless(t)
	signals, answer := make(chan os.Signal, signalsMost), make(chan struct{})
	s := &stub{reserve: func(call int) (*coordinatorv1.ReserveResponse, error) {
		signals <- syscall.SIGTERM
		signals <- syscall.SIGINT
		<-answer
		return grantedForAMinute(call)
	}}
	code, stderr := runSignalled(t, s, signals, "--timeout", "1m", "--", "true")
	close(answer)
	const want = "coordctl: received SIGTERM; the command was not started; the key may be taken until it lapses\n"
	if code != 143 || stderr != want {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// interrupting is an input that nothing comes from, whose reader is interrupted.
type interrupting struct {
	interrupt context.CancelFunc
	ended     chan struct{}
}

func (i interrupting) Read([]byte) (int, error) {
	i.interrupt()
	<-i.ended
	return 0, io.EOF
}

// A body that does not come is not waited for any longer after a signal, and nothing is sent.
func TestASignalWhileTheBodyIsRead(t *testing.T) {
	leakless(t)
	for name, arguments := range map[string][]string{
		"commit": {"commit", "k", "--token", "T"}, "resolve": {"resolve", "k", "--revision", "1", "--applied"},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		defer close(ended)
		var said bytes.Buffer
		s := &stub{commit: func() error { t.Error("it was sent"); return nil }}
		w := world{dial: reach, stdin: interrupting{cancel, ended}, stdout: &bytes.Buffer{}, stderr: &said}
		code := run(ctx, w, append(arguments, "--endpoints", serve(t, s), "--body-file", "-"))
		if want := "coordctl: CANCELLED: interrupted before the body was read; nothing was sent\n"; code != reason.ExitUnavailable || said.String() != want {
			t.Errorf("%s: exit code %d, %q", name, code, &said)
		}
	}
}

// Whatever hangs after one signal, such as an output that nobody takes, the next one ends the
// program: all but run, which hears them all.
func TestSignalsAfterTheFirst(t *testing.T) {
	beginSignals()
	for _, takes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var restored atomic.Int32
			s := newSignals()
			s.restore = func() { restored.Add(1) }
			ctx := s.interrupt(t.Context())
			time.Sleep(2 * stopsignal.SameWithin)
			if ctx.Err() != nil || restored.Load() != 0 {
				t.Errorf("before there was a signal: %v, restored %d times", ctx.Err(), restored.Load())
			}
			s.come <- syscall.SIGTERM
			synctest.Wait()
			if takes {
				s.take()
			}
			time.Sleep(2 * stopsignal.SameWithin)
			if ctx.Err() == nil || takes != (restored.Load() == 0) {
				t.Errorf("taken: %t, %v, restored %d times", takes, ctx.Err(), restored.Load())
			}
			if takes {
				if heard := s.heed(2, t.FailNow)(); len(heard) != 1 {
					t.Errorf("heard %v", heard)
				}
			}
			s.close()
		})
	}
}

// Two signals while it is tried again say why it was not recorded.
func TestTwoSignalsSayWhyNothingIsRecorded(t *testing.T) {
	leakless(t)
	var r *runner
	commits := 0
	refused := func() error {
		if commits++; commits == 2 {
			r.signals.come <- syscall.SIGTERM
			r.signals.come <- syscall.SIGTERM
		}
		return reason.Error(reason.NoLeader, "")
	}
	var (
		reservation *client.Reservation
		said        *bytes.Buffer
	)
	r, reservation, said = reserved(t, &stub{commit: refused}, time.Minute)
	code := r.report(r.settle(reservation, ending{status: 3}, newCapture()))
	// A commit may be under way again by then, which leaves a doubt.
	want := "interrupted (NO_LEADER at " + r.endpoints[0] + ": the shard has no leader that can be reached); "
	if !strings.Contains(said.String(), want) || code != exitNotRecorded {
		t.Errorf("exit code %d, %q", code, said)
	}
}

// Who is stopped because nobody renews its reservation names who did not, and why.
func TestAnOwnershipThatIsLostNamesWhoIsSilent(t *testing.T) {
	for name, test := range map[string]struct {
		extend func(context.Context) error
		want   string
	}{
		"hangs":   {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "no answer from NODE"},
		"refuses": {func(context.Context) error { return reason.Error(reason.NoLeader, "") }, "NO_LEADER at NODE: the shard has no leader that can be reached"},
		"renews":  {func(context.Context) error { return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			virtually(t, func(t *testing.T) {
				r, reservation, said := reserved(t, &stub{extend: test.extend}, time.Second)
				_ = reservation.Extend(t.Context(), 0) // as a renewal does
				r.report(r.left(ending{status: 137, stopped: r.unanswered(errUnrenewed)}))
				want := errUnrenewed.Error()
				if test.want != "" {
					want += ": " + strings.ReplaceAll(test.want, "NODE", r.endpoints[0])
				}
				if !strings.Contains(said.String(), "ownership was lost ("+want+") and the command was stopped (137)") {
					t.Errorf("%q, want %q", said, want)
				}
			})
		})
	}
}

// Whose key it is is looked up for as long as there is no signal.
func TestASignalWhileTheRecordIsLookedAt(t *testing.T) {
	leakless(t)
	come := make(chan os.Signal, signalsMost)
	s := &stub{reserve: failed(reason.Error(reason.FingerprintMismatch, ""))}
	s.get = func(ctx context.Context) error {
		come <- syscall.SIGTERM
		<-ctx.Done()
		return ctx.Err()
	}
	const want = "coordctl: FINGERPRINT_MISMATCH: the key was used with another command, or not by coordctl run; the command was not started\n"
	began := time.Now()
	code, stderr := runSignalled(t, s, come, "--timeout", "1m", "--", "true")
	if took := time.Since(began); code != exitOfRun+reason.ExitFingerprintMismatch || stderr != want || took > 30*time.Second {
		t.Errorf("exit code %d after %v, %q", code, took, stderr)
	}
}

// A second signal does not wait for the recording either, and whoever sent what may have been
// recorded does not know whether it was.
func TestTwoSignalsDoNotWaitForTheRecording(t *testing.T) {
	for name, releaseOn := range map[string][]int{"recorded": nil, "released": {3}} {
		t.Run(name, func(t *testing.T) {
			leakless(t)
			var r *runner
			answer := make(chan struct{})
			settled := func() error {
				r.signals.come <- syscall.SIGTERM
				r.signals.come <- syscall.SIGTERM
				<-answer
				return nil
			}
			var (
				reservation *client.Reservation
				said        *bytes.Buffer
			)
			r, reservation, said = reserved(t, &stub{commit: settled, release: func(context.Context) error { return settled() }}, time.Minute)
			r.flags.releaseOn = releaseOn
			defer close(answer)
			code := r.report(r.settle(reservation, ending{status: 3}, newCapture()))
			if !strings.Contains(said.String(), ": the command ended with 3, and it is not known whether the ") || !strings.Contains(said.String(), " was "+name+": interrupted (no answer from "+r.endpoints[0]+"); ") ||
				code != exitNotRecorded {
				t.Errorf("exit code %d, %q", code, said)
			}
		})
	}
}
