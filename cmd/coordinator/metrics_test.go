package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	coordinatorv1 "github.com/atmostonce/coordinator/gen/coordinator/v1"
)

func scraped(address string) (string, error) {
	client := http.Client{Timeout: 5 * time.Second}
	answer, err := client.Get("http://" + address + "/metrics")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%d: %s", answer.StatusCode, text)
	}
	return string(text), err
}

// scrape prints what is served.
func scrape(ts *testscript.TestScript, neg bool, args []string) {
	text, err := scraped(args[0])
	ts.Check(err)
	_, err = io.WriteString(ts.Stdout(), text)
	ts.Check(err)
}

// metric waits until the series with these labels, among others, add up to a value.
func metric(ts *testscript.TestScript, neg bool, args []string) {
	name, rest, _ := strings.Cut(args[1], "{")
	labels := strings.FieldsFunc(strings.TrimSuffix(rest, "}"), func(r rune) bool { return r == ',' })
	want, err := strconv.ParseFloat(args[2], 64)
	ts.Check(err)
	last := ""
	poll(ts, fmt.Sprintf("%s to be %s", args[1], args[2]), func() bool {
		text, err := scraped(args[0])
		if err != nil {
			return false
		}
		sum, some := 0.0, false
		for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
			series, value, _ := strings.Cut(lines.Text(), " ")
			if found, _, _ := strings.Cut(series, "{"); found != name || !hasAll(series, labels) {
				continue
			}
			parsed, err := strconv.ParseFloat(value, 64)
			ts.Check(err)
			sum, some = sum+parsed, true
		}
		if now := fmt.Sprint(sum); now != last {
			last = now
			ts.Logf("%s: %s", args[1], now)
		}
		return some && sum == want
	})
}

func hasAll(series string, labels []string) bool {
	for _, label := range labels {
		if !strings.Contains(series, label) {
			return false
		}
	}
	return true
}

// called makes calls to a node, about a key.
func called(do func(ctx context.Context, client coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity) error) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		conn, err := grpc.NewClient(args[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
		ts.Check(err)
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		ts.Check(do(ctx, coordinatorv1.NewCoordinatorServiceClient(conn), &coordinatorv1.Identity{Key: args[1]}))
	}
}

// hold reserves a key for 100 ms, to be held when that is over.
func hold(ctx context.Context, client coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity) error {
	answer, err := client.Reserve(ctx, &coordinatorv1.ReserveRequest{
		Identity: id, PendingTtl: durationpb.New(100 * time.Millisecond), OnLapse: coordinatorv1.OnLapse_ON_LAPSE_HOLD,
	})
	if err == nil && answer.GetGranted() == nil {
		return fmt.Errorf("not granted: %v", answer)
	}
	return err
}

// settle says of a key in doubt that nothing happened.
func settle(ctx context.Context, client coordinatorv1.CoordinatorServiceClient, id *coordinatorv1.Identity) error {
	record, err := client.Get(ctx, &coordinatorv1.GetRequest{Identity: id})
	if err != nil {
		return err
	}
	_, err = client.Resolve(ctx, &coordinatorv1.ResolveRequest{
		Identity: id, Revision: record.GetRecord().GetRevision(),
		Settlement: &coordinatorv1.ResolveRequest_NotApplied{NotApplied: &coordinatorv1.NotApplied{}},
	})
	return err
}
