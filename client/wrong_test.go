package client_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/atmostonce/coordinator/client"
)

// Options that no Reserve could have are refused when the client is made.
func TestDefaultsThatNoReserveCouldHave(t *testing.T) {
	for want, option := range map[string]client.ReserveOption{
		"WithPendingTTL is 0s, it must be from 100ms to 24h0m0s":      client.WithPendingTTL(0),
		"WithPendingTTL is -1ns, it must be from 100ms to 24h0m0s":    client.WithPendingTTL(-1),
		"WithPendingTTL is 25h0m0s, it must be from 100ms to 24h0m0s": client.WithPendingTTL(25 * time.Hour),
		"WithRetention is 0s, it must be from 1s to 720h0m0s":         client.WithRetention(0),
		"WithRetention is 744h0m0s, it must be from 1s to 720h0m0s":   client.WithRetention(31 * 24 * time.Hour),
		"WithOwner is 129 bytes long, the limit is 128":               client.WithOwner(strings.Repeat("o", 129)),
		"WithOwner is not valid UTF-8":                                client.WithOwner("\xff"),
		"WithFingerprint is 65 bytes long, the limit is 64":           client.WithFingerprint(make([]byte, 65)),
		"WithOnLapse is 7, which has no meaning":                      client.WithOnLapse(7),
		"WithReserveTimeout is 0s, it must be more than 0":            client.WithReserveTimeout(0),
		"WithReserveTimeout is -1m0s, it must be more than 0":         client.WithReserveTimeout(-time.Minute),
	} {
		dialed, err := client.Dial([]string{"127.0.0.1:1"}, client.WithReserveDefaults(client.WithWait(time.Second), option))
		if err == nil {
			_ = dialed.Close()
		}
		if got := fmt.Sprint(err); got != "client: WithReserveDefaults: "+want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	dialed, err := client.Dial([]string{"127.0.0.1:1"}, client.WithReserveDefaults(client.WithPendingTTL(24*time.Hour),
		client.WithRetention(time.Second), client.WithOwner(strings.Repeat("o", 128)), client.WithOnLapse(client.Hold),
		client.WithFingerprint(make([]byte, 64)), client.WithReserveTimeout(1), client.WithWait(-1)))
	wantNone(t, err)
	_ = dialed.Close()
}

// An option that is nil has lost what it was to say, so none is passed over: the place is named.
func TestOptionsThatAreNil(t *testing.T) {
	dialed, err := client.Dial([]string{"127.0.0.1:1"})
	wantNone(t, err)
	defer dialed.Close()
	for want, call := range map[string]func(){
		"client: option 2 of Dial is nil":                func() { _, _ = client.Dial(nil, client.WithInsecure(), nil) },
		"client: option 1 of WithReserveDefaults is nil": func() { client.WithReserveDefaults(nil) },
		"client: option 2 of WithDialOptions is nil":     func() { client.WithDialOptions(grpc.WithUserAgent("me"), nil) },
		"client: option 1 of Reserve is nil":             func() { _, _ = dialed.Reserve(t.Context(), id("k"), nil) },
		"client: option 2 of Do is nil": func() {
			_, _ = dialed.Do(t.Context(), id("k"), func(context.Context, *client.Reservation) (client.Response, error) {
				return client.Response{}, nil
			}, client.WithKeepAlive(), nil)
		},
		"client: option 1 of Get is nil":    func() { _, _ = dialed.Get(t.Context(), id("k"), nil) },
		"client: option 1 of Commit is nil": func() { _ = (&client.Reservation{}).Commit(t.Context(), client.Response{}, nil) },
	} {
		func() {
			defer func() {
				if said := recover(); said != want {
					t.Errorf("%v, want %q", said, want)
				}
			}()
			call()
		}()
	}
}

// What cannot even be sent is refused by the value that was given.
func TestWhatCannotBeSentIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, start(t, 1))
		refused := func(err error, text string) {
			t.Helper()
			if want(t, err, client.ErrInvalidArgument); !strings.Contains(err.Error(), text) {
				t.Errorf("%v, want %q", err, text)
			}
		}
		for _, o := range []client.OnLapse{-1, 2, 7, math.MaxInt} {
			_, err := c.Reserve(t.Context(), id("k"), client.WithOnLapse(o))
			refused(err, fmt.Sprintf("on_lapse is %d, which has no meaning", int(o)))
		}
		_, err := c.Reserve(t.Context(), id("k"), client.WithReserveTimeout(-time.Second))
		refused(err, "timeout is -1s, it must be more than 0")
		for i, code := range []int{-1, math.MinInt, 1000, math.MaxUint32, math.MaxInt} {
			r := granted(t, c, fmt.Sprint(i))
			refused(c.ResolveApplied(t.Context(), id("k"), 1, client.Response{Code: code}, ""), fmt.Sprintf("response.code is %d, the limit is 999", code))
			refused(r.Commit(t.Context(), client.Response{Code: code}), fmt.Sprintf("response.code is %d, the limit is 999", code))
		}
	})
}
