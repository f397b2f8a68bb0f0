package client_test

import (
	"bytes"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/atmostonce/coordinator/client"
)

// A response that is refused gives way to its substitute, and a retention that is refused to
// the record's own; what is taken stays. Without a substitute a refusal is the answer.
func TestCommitWithASubstitute(t *testing.T) {
	fine, large := client.Response{Code: 200, Body: []byte("whole")}, client.Response{Code: 200, Body: bytes.Repeat([]byte("x"), 1<<20+1)}
	instead := client.Response{Code: 1, Body: []byte("instead")}
	const kept, own = time.Hour, 2 * time.Hour
	for name, test := range map[string]struct {
		response, substitute client.Response
		retention            time.Duration
		asked                int // how often for a substitute
		refused              error
		code                 int
		remains              time.Duration
	}{
		"all is taken":           {fine, instead, kept, 0, nil, 200, kept},
		"the response is not":    {large, instead, kept, 1, nil, 1, kept},
		"the retention is not":   {fine, instead, -1, 0, nil, 200, own},
		"neither is":             {large, instead, -1, 1, nil, 1, own},
		"nor is the substitute":  {large, large, kept, 1, client.ErrResponseTooLarge, 0, 0},
		"not even of the record": {large, large, -1, 1, client.ErrResponseTooLarge, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := dial(t, start(t, 1))
				r := granted(t, c, "k", client.WithRetention(own))
				if err := r.Commit(t.Context(), test.response, client.WithCommitRetention(test.retention)); (err == nil) != (test.asked == 0 && test.remains == kept) {
					t.Fatalf("without a substitute: %v", err)
				}
				var refusals []error
				err := r.Commit(t.Context(), test.response, client.WithCommitRetention(test.retention), client.WithSubstitute(func(refusal error) client.Response {
					refusals = append(refusals, refusal)
					return test.substitute
				}))
				if !errors.Is(err, test.refused) || len(refusals) != test.asked {
					t.Fatalf("%v; asked for a substitute: %v", err, refusals)
				}
				for _, refusal := range refusals {
					want(t, refusal, client.ErrResponseTooLarge)
				}
				if test.refused != nil {
					return
				}
				_, err = c.Reserve(t.Context(), id("k"))
				var done *client.CommittedError
				if !errors.As(err, &done) || done.Response.Code != test.code || done.Remaining > test.remains || done.Remaining < test.remains-time.Minute {
					t.Errorf("%v: %+v", err, done)
				}
			})
		})
	}
}

// Do stores what its caller says, too, and takes it for the answer of who comes later.
func TestDoWithASubstitute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		large := client.Response{Code: 200, Body: bytes.Repeat([]byte("x"), 1<<20+1)}
		short := client.WithSubstitute(func(error) client.Response { return client.Response{Code: 200, Body: []byte("short")} })
		if result, err := c.Do(t.Context(), id("k"), returns(large, nil), short); err != nil || len(result.Response.Body) != len(large.Body) {
			t.Errorf("the first caller: %v", err)
		}
		if result, err := c.Do(t.Context(), id("k"), returns(large, nil), short); err != nil || !result.Replayed || string(result.Response.Body) != "short" {
			t.Errorf("the second caller: %+v, %v", result, err)
		}
	})
}
