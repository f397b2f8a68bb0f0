package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
	"github.com/atmostonce/coordinator/internal/metakey"
	"github.com/atmostonce/coordinator/internal/reason"
)

// stub answers Reserve, page after page of records, a status, and nothing else; and Commit
// where it is told how.
type stub struct {
	coordinatorv1.UnimplementedCoordinatorServiceServer
	coordinatorv1.UnimplementedAdminServiceServer

	mu       sync.Mutex
	reserve  func(call int) (*coordinatorv1.ReserveResponse, error)
	commit   func() error // nil: in doubt
	release  func(context.Context) error
	extend   func(context.Context) error
	get      func(context.Context) error // nil: in doubt
	extended *time.Duration              // what an Extend leaves; nil: a minute
	pace     time.Duration               // of each Commit, in virtual time
	requests []*coordinatorv1.ReserveRequest
	releases []*coordinatorv1.ReleaseRequest
	pages    int
	problems []string
	leaders  []string // of the shards
	node     string   // "": n1
	cluster  *string  // which it is of, "" for none yet; nil: it is asked by those only who do not care
}

// ClusterStatus says that the cluster is well unless there are problems. Who names another
// cluster is refused as a node refuses it.
func (s *stub) ClusterStatus(ctx context.Context, _ *coordinatorv1.ClusterStatusRequest) (*coordinatorv1.ClusterStatusResponse, error) {
	answer := &coordinatorv1.ClusterStatusResponse{NodeId: cmp.Or(s.node, "n1"), Healthy: len(s.problems) == 0, Problems: s.problems}
	if s.cluster == nil {
		return answer, nil
	}
	answer.ClusterId = *s.cluster
	if named := metadata.ValueFromIncomingContext(ctx, metakey.Cluster); len(named) > 0 && (named[0] != *s.cluster || *s.cluster == "") {
		_ = grpc.SetHeader(ctx, metadata.Pairs(metakey.Cluster, *s.cluster))
		if named[0] != "" {
			return nil, reason.Error(reason.NoLeader, "")
		}
	}
	return answer, nil
}

func (s *stub) Reserve(_ context.Context, request *coordinatorv1.ReserveRequest) (*coordinatorv1.ReserveResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = append(s.requests, request)
	return s.reserve(len(s.requests))
}

// answers says how Reserve is answered from now on. A call of before may still arrive.
func (s *stub) answers(reserve func(call int) (*coordinatorv1.ReserveResponse, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reserve = reserve
}

// attempts returns the attempt ids that have been seen, and how many calls there were.
func (s *stub) attempts() (ids map[string]bool, calls int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids = map[string]bool{}
	for _, request := range s.requests {
		ids[string(request.GetAttemptId())] = true
	}
	return ids, len(s.requests)
}

// ListRecords gives out s.pages pages of as many records as it is asked for.
func (s *stub) ListRecords(_ context.Context, request *coordinatorv1.ListRecordsRequest) (*coordinatorv1.ListRecordsResponse, error) {
	page := 0
	if request.GetPageToken() != "" {
		if _, err := fmt.Sscanf(request.GetPageToken(), "page-%d", &page); err != nil {
			return nil, reason.Violation(reason.InvalidArgument, "page_token", "is none")
		}
	}
	answer := &coordinatorv1.ListRecordsResponse{}
	if page+1 < s.pages {
		answer.NextPageToken = fmt.Sprintf("page-%d", page+1)
	}
	if page%2 == 1 {
		return answer, nil // an empty one
	}
	for i := range request.GetPageSize() {
		answer.Records = append(answer.Records, &coordinatorv1.Record{
			Identity: &coordinatorv1.Identity{Namespace: "n", Key: fmt.Sprintf("%d-%d", page, i)}, State: coordinatorv1.State_STATE_PENDING,
		})
	}
	return answer, nil
}

// services are those of a node.
type services interface {
	coordinatorv1.CoordinatorServiceServer
	coordinatorv1.AdminServiceServer
}

func serve(t *testing.T, s services) string {
	t.Helper()
	listener, server := listen(t), grpc.NewServer()
	coordinatorv1.RegisterCoordinatorServiceServer(server, s)
	coordinatorv1.RegisterAdminServiceServer(server, s)
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-served
	})
	return listener.Addr().String()
}

// control runs one command line in this process.
func command(t *testing.T, arguments ...string) (code int, stdout, stderr string) {
	t.Helper()
	return in(t, nil, arguments...)
}

// in is command in an environment.
func in(t *testing.T, environment []string, arguments ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	w := world{stdin: strings.NewReader(""), stdout: &out, stderr: &err, environment: environment, signals: newSignals(), dial: reach}
	code = run(t.Context(), w, arguments)
	return code, out.String(), err.String()
}

func leakless(t *testing.T) {
	t.Helper()
	already := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, already) })
}

func failed(err error) func(int) (*coordinatorv1.ReserveResponse, error) {
	return func(int) (*coordinatorv1.ReserveResponse, error) { return nil, err }
}

func grantedBy(int) (*coordinatorv1.ReserveResponse, error) {
	return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Granted{Granted: &coordinatorv1.Granted{
		Token: "T", Fence: 1, Remaining: durationpb.New(time.Minute),
	}}}, nil
}

// Every reason of the table ends in its exit code, is told on stderr and leaves stdout
// empty, in both forms.
func TestEveryReasonHasItsExitCode(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s := &stub{}
		address := serve(t, s)
		for _, row := range reason.Table() {
			s.answers(failed(reason.Error(row.Reason, "")))
			within := "10s"
			if row.Code == codes.Unavailable {
				within = "2s" // it is tried again until then
			}
			base := []string{"--endpoints", address, "--timeout", within}
			code, stdout, stderr := command(t, append(base, "reserve", "k")...)
			if code != row.ExitCode || stdout != "" || !strings.HasPrefix(stderr, "coordctl: "+string(row.Reason)+": ") ||
				strings.Count(stderr, "\n") != 1 {
				t.Errorf("%s: exit code %d, want %d; stdout %q, stderr %q", row.Reason, code, row.ExitCode, stdout, stderr)
			}
			code, stdout, stderr = command(t, append(base, "-o", "json", "reserve", "k")...)
			var shown map[string]errorJSON
			if err := json.Unmarshal([]byte(stderr), &shown); err != nil {
				t.Errorf("%s: %q: %v", row.Reason, stderr, err)
			}
			got := shown["error"]
			if code != row.ExitCode || stdout != "" || got.Reason != string(row.Reason) || got.Code != reason.CodeName(row.Code) ||
				got.Applied != row.Applied.String() || got.Message == "" {
				t.Errorf("%s: exit code %d, stdout %q, %+v", row.Reason, code, stdout, got)
			}
		}
	})
}

// An outcome that this program does not know admits nobody.
func TestAnUnknownOutcomeAdmitsNobody(t *testing.T) {
	leakless(t)
	s := &stub{reserve: func(int) (*coordinatorv1.ReserveResponse, error) { return &coordinatorv1.ReserveResponse{}, nil }}
	code, stdout, stderr := command(t, "--endpoints", serve(t, s), "reserve", "k")
	if code != reason.ExitUnavailable || stdout != "" || !strings.Contains(stderr, "; to ask again as the same attempt: --attempt-id ") {
		t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

// Invariant 1: however often it is sent, and where, it is the same attempt.
func TestRetriesAreTheSameAttempt(t *testing.T) {
	leakless(t)
	first := &stub{reserve: failed(reason.Error(reason.OutcomeUnknown, ""))}
	second := &stub{reserve: func(call int) (*coordinatorv1.ReserveResponse, error) {
		if call < 3 {
			return nil, status.Error(codes.Unavailable, "bare")
		}
		return grantedBy(call)
	}}
	code, stdout, stderr := command(t, "--endpoints", serve(t, first)+","+serve(t, second), "reserve", "k")
	if code != reason.ExitDone || !strings.Contains(stdout, "granted") || stderr != "" {
		t.Fatalf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
	}
	ids, calls := first.attempts()
	others, more := second.attempts()
	if calls != 3 || more != 3 {
		t.Errorf("%d calls and %d", calls, more)
	}
	for id := range others {
		ids[id] = true
	}
	if len(ids) != 1 {
		t.Errorf("%d attempts", len(ids))
	}
}

// An answer is an answer: nothing but UNAVAILABLE is asked again.
func TestAnswersAreNotAskedForAgain(t *testing.T) {
	leakless(t)
	for _, r := range []reason.Reason{reason.FingerprintMismatch, reason.AttemptEnded, reason.Overloaded, reason.InvalidArgument, reason.DeadlineExceeded} {
		s := &stub{reserve: failed(reason.Error(r, ""))}
		other := &stub{reserve: grantedBy}
		code, _, _ := command(t, "--endpoints", serve(t, s)+","+serve(t, other), "reserve", "k")
		if _, calls := s.attempts(); calls != 1 || code != r.Row().ExitCode {
			t.Errorf("%s: %d calls, exit code %d", r, calls, code)
		}
		if _, calls := other.attempts(); calls != 0 {
			t.Errorf("%s: the next endpoint was asked", r)
		}
	}
}

// Invariant 2: a doubt stays until an answer takes it away.
func TestADoubtStays(t *testing.T) {
	virtually(t, func(t *testing.T) {
		unknown := func(call int) (*coordinatorv1.ReserveResponse, error) {
			if call == 1 {
				return nil, reason.Error(reason.OutcomeUnknown, "")
			}
			return nil, reason.Error(reason.NoLeader, "")
		}
		s := &stub{reserve: unknown}
		code, _, stderr := command(t, "--endpoints", serve(t, s), "--timeout", "2s", "reserve", "k")
		if code != reason.ExitUnavailable || !strings.Contains(stderr, "OUTCOME_UNKNOWN") || !strings.Contains(stderr, "--attempt-id") {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
		// What the record says is the truth, whatever was before. What refuses the delivery says nothing
		// of an earlier one, whoever refuses it.
		for _, after := range []error{
			status.Error(codes.Unimplemented, ""), status.Error(codes.ResourceExhausted, ""), status.Error(codes.FailedPrecondition, ""),
			status.Error(codes.Internal, ""), named(codes.FailedPrecondition, "OF_A_NEWER_COORDINATOR"),
		} {
			expectDoubt(t, after, true)
		}
		for _, row := range reason.Table() {
			expectDoubt(t, reason.Error(row.Reason, ""), !row.OfRecord)
		}
	})
}

// named is a status with a reason of ours that the table may not have.
func named(code codes.Code, why string) error {
	bare := status.New(code, "")
	detailed, err := bare.WithDetails(protoadapt.MessageV1Of(&errdetails.ErrorInfo{Reason: why, Domain: reason.Domain}))
	if err != nil {
		return bare.Err()
	}
	return detailed.Err()
}

// expectDoubt reserves where the first delivery leaves a doubt, and the next ones are answered so.
func expectDoubt(t *testing.T, after error, stays bool) {
	t.Helper()
	s := &stub{reserve: func(call int) (*coordinatorv1.ReserveResponse, error) {
		if call == 1 {
			return nil, reason.Error(reason.OutcomeUnknown, "")
		}
		return nil, after
	}}
	want, exit := string(reason.OutcomeUnknown), reason.ExitUnavailable
	if !stays {
		last := reason.Of(after)
		want, exit = string(last.Reason), last.ExitCode
	}
	code, _, stderr := command(t, "--endpoints", serve(t, s), "--timeout", "1s", "-o", "json", "reserve", "k")
	var shown map[string]errorJSON
	if err := json.Unmarshal([]byte(stderr), &shown); err != nil {
		t.Fatalf("%q: %v", stderr, err)
	}
	got := shown["error"]
	if code != exit || got.Reason != want || (got.Applied == reason.Maybe.String()) != stays || (got.AttemptID != "") != stays {
		t.Errorf("%v: exit code %d, %+v, want %s, a doubt: %t", after, code, got, want, stays)
	}
}

func TestGraver(t *testing.T) {
	no := reason.Failure{Code: codes.Unavailable, Applied: reason.No, Message: "no"}
	other := reason.Failure{Code: codes.Unavailable, Applied: reason.No, Message: "other"}
	maybe := reason.Failure{Code: codes.Unavailable, Applied: reason.Maybe, Message: "maybe"}
	late := reason.Failure{Code: codes.DeadlineExceeded, Applied: reason.No, Message: "late"}
	named := reason.Failure{Code: codes.Unavailable, Applied: reason.No, Info: true, Message: "named"}
	unknown := reason.Failure{Code: codes.Unavailable, Applied: reason.Maybe, Info: true, Message: "unknown"}
	lateMaybe := reason.Failure{Code: codes.DeadlineExceeded, Applied: reason.Maybe, Message: "late, maybe"}
	for _, test := range []struct{ before, after, want reason.Failure }{
		{reason.Failure{}, late, late},
		{no, other, other},
		{no, maybe, maybe},
		{maybe, no, maybe},
		{maybe, lateMaybe, maybe},
		{no, late, no},
		{no, lateMaybe, lateMaybe},
		{named, no, named},
		{no, named, named},
		{named, late, named},
		{named, maybe, maybe},
		{maybe, named, maybe},
		{maybe, unknown, unknown},
		{unknown, maybe, unknown},
		{unknown, named, unknown},
	} {
		if got := graver(test.before, test.after); got.Message != test.want.Message {
			t.Errorf("%q, then %q: %q, want %q", test.before.Message, test.after.Message, got.Message, test.want.Message)
		}
	}
}

// A node that takes the call and says nothing leaves a doubt once the time is over; one
// that cannot be connected to does not.
func TestSilence(t *testing.T) {
	virtually(t, func(t *testing.T) {
		release := make(chan struct{})
		s := &stub{reserve: func(int) (*coordinatorv1.ReserveResponse, error) { <-release; return nil, errors.New("late") }}
		address := serve(t, s)
		code, _, stderr := command(t, "--endpoints", address, "--timeout", "2s", "-o", "json", "reserve", "k")
		if code != reason.ExitUnavailable || !strings.Contains(stderr, `"applied":"maybe"`) || !strings.Contains(stderr, "attempt_id") {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
		close(release)

		deaf := listen(t) // accepts nothing, says nothing
		defer func() { _ = deaf.Close() }()
		code, _, stderr = command(t, "--endpoints", deaf.Addr().String(), "--timeout", "1s", "-o", "json", "reserve", "k")
		if code != reason.ExitUnavailable || !strings.Contains(stderr, `"applied":"no"`) {
			t.Errorf("exit code %d, stderr %q", code, stderr)
		}
	})
}

// The time to wait is on top of the timeout.
func TestTheTimeoutLeavesTimeToWait(t *testing.T) {
	leakless(t)
	var left time.Duration
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		deadline, _ := ctx.Deadline()
		left = time.Until(deadline)
		return handle(ctx, request)
	}))
	coordinatorv1.RegisterCoordinatorServiceServer(server, &stub{reserve: grantedBy})
	listener, served := listen(t), make(chan struct{})
	go func() { defer close(served); _ = server.Serve(listener) }()
	code, _, _ := command(t, "--endpoints", listener.Addr().String(), "reserve", "k", "--wait", "30s")
	server.Stop()
	<-served
	if code != reason.ExitDone || left > 35*time.Second || left < 30*time.Second {
		t.Errorf("exit code %d, %v left", code, left)
	}
}

// Invariant 3, as far as it can be seen: pages come out as they come in.
func TestRecordsFollowsThePages(t *testing.T) {
	leakless(t)
	s := &stub{pages: 6}
	address := serve(t, s)
	for limit, want := range map[string]int{"0": 3000, "1": 1, "1000": 1000, "1001": 1001, "5000": 3000} {
		code, stdout, stderr := command(t, "--endpoints", address, "-o", "json", "records", "--limit", limit)
		if got := strings.Count(stdout, "\n"); code != 0 || got != want {
			t.Errorf("limit %s: exit code %d, %d records, want %d; %s", limit, code, got, want, stderr)
		}
	}
	_, stdout, _ := command(t, "--endpoints", address, "records")
	if strings.Count(stdout, "STATE") != 1 || strings.Count(stdout, "\n") != 3001 {
		t.Errorf("%d lines, %d headings", strings.Count(stdout, "\n"), strings.Count(stdout, "STATE"))
	}
}

// A stdout that takes nothing is a failure, and no success.
func TestAFullStdout(t *testing.T) {
	leakless(t)
	for _, line := range [][]string{{"reserve", "k"}, {"reserve", "k", "--token-only"}, {"-o", "json", "reserve", "k"}, {"records"}, {"-o", "json", "records"}} {
		var stderr bytes.Buffer
		s := &stub{reserve: grantedBy, pages: 1}
		address := serve(t, s)
		w := world{dial: reach, stdin: strings.NewReader(""), stdout: full{}, stderr: &stderr, environment: []string{variableOf(endpointsFlag) + "=" + address}}
		code := run(t.Context(), w, line)
		if code != reason.ExitFailure || !strings.Contains(stderr.String(), "no space") || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%v: exit code %d, %q", line, code, stderr.String())
		}
		// The key is taken: the attempt is what is left of it.
		ids, calls := s.attempts()
		for id := range ids {
			if reserves := slices.Contains(line, "reserve"); reserves != strings.Contains(stderr.String(), hex.EncodeToString([]byte(id))) && calls == 1 {
				t.Errorf("%v: the attempt id is missing or told for nothing: %q", line, stderr.String())
			}
		}
		if slices.Contains(line, "json") && !json.Valid(stderr.Bytes()) {
			t.Errorf("%v: %q is not JSON", line, stderr.String())
		}
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

// What gRPC says of a connection that failed is told in one clear line, whatever failed.
func TestConnectionsThatFailAreToldInWords(t *testing.T) {
	virtually(t, func(t *testing.T) {
		silent, foreign := listen(t), listen(t) // one accepts nothing, the other says something else
		defer func() { _ = silent.Close() }()
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				conn, err := foreign.Accept()
				if err != nil {
					return
				}
				_, _ = conn.Write([]byte("220 mail\r\n"))
				_ = conn.Close()
			}
		}()
		defer func() { _ = foreign.Close(); <-served }()
		breaking := serveBreaking(t)
		refusing := serve(t, &stub{reserve: failed(status.Error(codes.Unavailable, "no healthy upstream"))})
		cancelling := serve(t, &stub{reserve: failed(status.Error(codes.Canceled, ""))})

		const notOurs = " does not answer as a coordinator: it hangs, is something else, or speaks TLS, as with --tls-ca"
		for endpoint, want := range map[string]string{
			noStub:                  "cannot connect to " + noStub + ": connection refused",
			silent.Addr().String():  "the time of --timeout (1s) was over before " + silent.Addr().String() + " answered as a coordinator",
			foreign.Addr().String(): foreign.Addr().String() + notOurs,
			breaking:                "the connection to " + breaking + " broke before there was an answer",
			refusing:                refusing + " answered UNAVAILABLE: no healthy upstream; ",
			cancelling:              cancelling + " answered CANCELLED; ",
		} {
			code, _, stderr := command(t, "--endpoints", endpoint, "--timeout", "1s", "reserve", "k")
			// Connecting has a second too, and may be the first to be over.
			told := strings.Contains(stderr, ": "+want) || endpoint == silent.Addr().String() && strings.Contains(stderr, endpoint+notOurs)
			if code != reason.ExitUnavailable || !told || strings.Contains(stderr, "desc =") {
				t.Errorf("%s: exit code %d, %q, want %q", endpoint, code, stderr, want)
			}
		}
		unknown := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Err: "no such host", Name: "nowhere.invalid", IsNotFound: true}}
		if got := rootCause(unknown); got != "no address is known by this name" {
			t.Errorf("got %q", got)
		}
	})
}

// recording is a listener that keeps in mind which connections it has made.
type recording struct {
	net.Listener
	mu   sync.Mutex
	made []net.Conn
}

func (r *recording) Accept() (net.Conn, error) {
	conn, err := r.Listener.Accept()
	if err == nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.made = append(r.made, conn)
	}
	return conn, err
}

// serveBreaking breaks the connection in place of answering.
func serveBreaking(t *testing.T) string {
	t.Helper()
	listener, server, served := &recording{Listener: listen(t)}, grpc.NewServer(), make(chan struct{})
	coordinatorv1.RegisterCoordinatorServiceServer(server, &stub{reserve: func(int) (*coordinatorv1.ReserveResponse, error) {
		listener.mu.Lock()
		defer listener.mu.Unlock()
		for _, conn := range listener.made {
			_ = conn.Close()
		}
		return nil, status.Error(codes.Unavailable, "nobody hears this")
	}})
	go func() { defer close(served); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return listener.Addr().String()
}

// Scripts learn from the exit code whether the cluster is well, as people do from the result.
func TestStatusOfAnUnhealthyCluster(t *testing.T) {
	leakless(t)
	s := &stub{}
	address := serve(t, s)
	for _, problems := range [][]string{nil, {"shard 1 has no leader", "n2 does not answer"}} {
		s.problems = problems
		want := reason.ExitDone
		if problems != nil {
			want = 11
		}
		for _, form := range []string{"table", "json"} {
			code, stdout, stderr := command(t, "status", "--endpoints", address, "-o", form)
			if code != want || stderr != "" {
				t.Errorf("%v: exit code %d, stderr %q", problems, code, stderr)
			}
			for _, problem := range problems {
				if !strings.Contains(stdout, problem) {
					t.Errorf("%q is not in %q", problem, stdout)
				}
			}
		}
	}
}

// Nothing is started by who was not admitted, and each reason has an exit code that is
// hardly a command's.
func TestRunStartsNothingUnlessAdmitted(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s := &stub{}
		address := serve(t, s)
		started := filepath.Join(t.TempDir(), "started")
		refusals := map[int][]func(int) (*coordinatorv1.ReserveResponse, error){
			108: {failed(status.Error(codes.Internal, "")), failed(status.Error(codes.Unknown, "")),
				grants("T", 0), grants("T", -time.Minute), grants("", time.Minute),
				func(int) (*coordinatorv1.ReserveResponse, error) { return &coordinatorv1.ReserveResponse{}, nil }},
			110: {failed(status.Error(codes.PermissionDenied, ""))},
		}
		for _, row := range reason.Table() {
			want := row.ExitCode + 100
			if row.ExitCode == reason.ExitNotOwner {
				want = 108
			}
			refusals[want] = append(refusals[want], failed(reason.Error(row.Reason, "")))
		}
		for want, all := range refusals {
			for i, refuse := range all {
				s.answers(refuse)
				code, stdout, stderr := command(t, "run", "--endpoints", address, "--timeout", "1s", "--key", "k", "--", "touch", started)
				if code != want || stdout != "" || !strings.Contains(stderr, "; the command was not started") || strings.Count(stderr, "\n") != 1 {
					t.Errorf("%d of %d: exit code %d, stdout %q, stderr %q", i, want, code, stdout, stderr)
				}
			}
		}
		if _, err := os.Stat(started); err == nil {
			t.Error("the command was started")
		}
	})
}

// Not to know whether one was admitted is asked about once more: nobody else would hear of it.
func TestRunAsksAgainWhenInDoubt(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s := &stub{}
		address := serve(t, s)
		s.answers(func(call int) (*coordinatorv1.ReserveResponse, error) {
			if bytes.Equal(s.requests[call-1].GetAttemptId(), s.requests[0].GetAttemptId()) {
				return nil, reason.Error(reason.OutcomeUnknown, "")
			}
			return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Committed{Committed: &coordinatorv1.Committed{
				Response: &coordinatorv1.Response{Code: 4, Body: []byte("before")},
			}}}, nil
		})
		code, stdout, stderr := command(t, "run", "--endpoints", address, "--timeout", "2s", "--no-wait", "--key", "k", "--", "true")
		if code != 4 || stdout != "before" || stderr != "" {
			t.Errorf("exit code %d, stdout %q, stderr %q", code, stdout, stderr)
		}
		if ids, calls := s.attempts(); len(ids) < 2 || calls < 2 {
			t.Errorf("%d calls of %d attempts", calls, len(ids))
		}
	})
}

// The longest time for a call, and what it waits on top, are not over before it begins.
func TestTheLongestTimeout(t *testing.T) {
	leakless(t)
	var said bytes.Buffer
	s := &stub{reserve: grantedForAMinute}
	w := world{dial: reach, stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &said}
	if code := run(t.Context(), w, []string{"reserve", "k", "--timeout", "2562047h", "--wait", "1h", "--endpoints", serve(t, s)}); code != reason.ExitDone {
		t.Errorf("exit code %d, %q", code, &said)
	}
}

// The longest wait there is comes on top of the longest timeout as any other does.
func TestTheLongestWait(t *testing.T) {
	leakless(t)
	s := &stub{reserve: grantedForAMinute}
	for _, timeout := range []string{"5s", "1h", "2562047h"} {
		code, _, stderr := command(t, "reserve", "k", "--timeout", timeout, "--wait", "2562047h47m", "--endpoints", serve(t, s))
		if code != reason.ExitDone {
			t.Errorf("%s: exit code %d, %q", timeout, code, stderr)
		}
	}
}

// Who waits for a run elsewhere waits for no longer than was said, also while the coordinator is away.
func TestAWaitEndsWhileTheCoordinatorIsAway(t *testing.T) {
	virtually(t, func(t *testing.T) {
		s := &stub{reserve: func(call int) (*coordinatorv1.ReserveResponse, error) {
			if call == 1 {
				return &coordinatorv1.ReserveResponse{Outcome: &coordinatorv1.ReserveResponse_Pending{Pending: &coordinatorv1.Pending{}}}, nil
			}
			return nil, reason.Error(reason.NoLeader, "")
		}}
		began := time.Now()
		code, _, stderr := command(t, "run", "--endpoints", serve(t, s), "--timeout", "1s", "--wait", "2s", "--key", "k", "--", "true")
		if took := time.Since(began); code != exitOfRun+reason.ExitUnavailable || !strings.Contains(stderr, "NO_LEADER: ") || took > awayWhileWaiting/2 {
			t.Errorf("exit code %d after %v, %q", code, took, stderr)
		}
	})
}

// A look changes nothing, whether or not what it has seen can be told.
func TestALookThatCannotBeToldIsNoDoubt(t *testing.T) {
	leakless(t)
	for line, applied := range map[string]string{"status": "no", "records": "no", "shards": "no", "reserve k": "maybe"} {
		var stderr bytes.Buffer
		w := world{dial: reach, stdin: strings.NewReader(""), stdout: full{}, stderr: &stderr}
		code := run(t.Context(), w, append(strings.Fields(line), "-o", "json", "--endpoints", serve(t, &stub{reserve: grantedBy, pages: 1})))
		if code != reason.ExitFailure || !strings.Contains(stderr.String(), `"applied":"`+applied+`"`) {
			t.Errorf("%s: exit code %d, %q", line, code, &stderr)
		}
	}
}

// What a node says is shown as text, whatever a terminal would make of it: C1 controls too, which
// are escape sequences of one character, and what turns a line around.
func TestWhatANodeSaysIsText(t *testing.T) {
	leakless(t)
	said := status.Error(codes.PermissionDenied, "no\x1b[31m\u009b31m\u202e\nway")
	var stderr bytes.Buffer
	s := &stub{commit: func() error { return said }, release: func(context.Context) error { return said }}
	w := world{dial: reach, stdin: strings.NewReader(""), stdout: &bytes.Buffer{}, stderr: &stderr}
	run(t.Context(), w, []string{"commit", "k", "--token", "T", "--endpoints", serve(t, s)})
	r, reservation, released := reserved(t, s, time.Minute)
	r.giveBack(reservation, "nothing was started", 1)
	r.settleNotes()
	for _, shown := range []string{stderr.String(), released.String()} {
		line := strings.TrimSuffix(shown, "\n")
		if !strings.Contains(line, "no") || !strings.Contains(line, "way") || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q", shown)
		}
	}
}
