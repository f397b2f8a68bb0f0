package main

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	faultsMost = 1000
	heldMost   = 2 * time.Minute // a call is slow, or held, for no longer than this
)

// fault is how some calls go wrong.
type fault struct {
	Call  string `json:"call"`  // create, reboot or terminate
	Point string `json:"point"` // before the effect, or after it
	// Kind is what happens:
	//
	//	refuse   409, without the effect; before only
	//	error    500
	//	cut      the connection breaks: the reply is lost
	//	slow     the call goes on after so many milliseconds
	//	hold     the call goes on once the faults are deleted
	Kind         string `json:"kind"`
	Times        int    `json:"times"` // how many calls; 1 where it is 0
	Milliseconds int    `json:"milliseconds,omitempty"`
}

func (f *fault) check() error {
	one := func(field, value string, of ...string) error {
		if !slices.Contains(of, value) {
			return fmt.Errorf("%s is %q, and must be one of %q", field, value, of)
		}
		return nil
	}
	if err := one("call", f.Call, "create", "reboot", "terminate"); err != nil {
		return err
	}
	if err := one("point", f.Point, "before", "after"); err != nil {
		return err
	}
	if err := one("kind", f.Kind, "refuse", "error", "cut", "slow", "hold"); err != nil {
		return err
	}
	switch {
	case f.Kind == "refuse" && f.Point == "after":
		return fmt.Errorf("what has had its effect cannot be refused")
	case f.Times < 0 || f.Times > faultsMost:
		return fmt.Errorf("times is %d, and must be 0 to %d", f.Times, faultsMost)
	case f.Milliseconds < 0 || time.Duration(f.Milliseconds)*time.Millisecond > heldMost:
		return fmt.Errorf("milliseconds is %d, and must be 0 to %d", f.Milliseconds, heldMost.Milliseconds())
	}
	return nil
}

// faults are those that are still to come. The zero value has none.
type faults struct {
	mu      sync.Mutex
	left    []*fault
	held    int           // calls, since the faults were last deleted
	carried int           // calls that came as far as their effect, or to its refusal
	release chan struct{} // closed when what is held goes on; nil while nothing was held
}

// strike lets a fault happen to a call, if there is one for it. done says that the call
// has been answered.
func (f *faults) strike(w http.ResponseWriter, call, point string) (done bool) {
	kind, wait, release := f.next(call, point)
	switch kind {
	case "refuse":
		answer(w, http.StatusConflict, failure{"there is no capacity"})
		return true
	case "error":
		answer(w, http.StatusInternalServerError, failure{"something went wrong"})
		return true
	case "cut":
		panic(http.ErrAbortHandler) // net/http closes the connection, and says nothing
	case "slow", "hold":
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-release: // never, where it is nil
		}
	}
	return false
}

// next takes the next fault for a call.
func (f *faults) next(call, point string) (kind string, wait time.Duration, release <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.IndexFunc(f.left, func(o *fault) bool { return o.Call == call && o.Point == point })
	if i < 0 {
		return "", 0, nil
	}
	found := f.left[i]
	if found.Times--; found.Times == 0 {
		f.left = slices.Delete(f.left, i, i+1)
	}
	if found.Kind != "hold" {
		return found.Kind, time.Duration(found.Milliseconds) * time.Millisecond, nil
	}
	if f.release == nil {
		f.release = make(chan struct{})
	}
	f.held++
	return found.Kind, heldMost, f.release
}

// passed counts a call that has had its effect, or was refused.
func (f *faults) passed() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.carried++
}

func (f *faults) add(w http.ResponseWriter, r *http.Request) {
	var added fault
	err := read(w, r, &added)
	if err == nil {
		err = added.check()
	}
	if err != nil {
		answer(w, http.StatusBadRequest, failure{err.Error()})
		return
	}
	added.Times = max(added.Times, 1)
	f.mu.Lock()
	full := len(f.left) >= faultsMost
	if !full {
		f.left = append(f.left, &added)
	}
	f.mu.Unlock()
	if full {
		answer(w, http.StatusConflict, failure{"there are too many faults"})
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (f *faults) list(w http.ResponseWriter, _ *http.Request) {
	now := struct {
		Faults  []fault `json:"faults"`
		Held    int     `json:"held"`
		Carried int     `json:"carried"`
	}{Faults: []fault{}}
	f.mu.Lock()
	for _, one := range f.left {
		now.Faults = append(now.Faults, *one)
	}
	now.Held, now.Carried = f.held, f.carried
	f.mu.Unlock()
	answer(w, http.StatusOK, now)
}

// clear forgets all faults and lets go on what is held.
func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left, f.held = nil, 0
	if f.release != nil {
		close(f.release)
		f.release = nil
	}
}
