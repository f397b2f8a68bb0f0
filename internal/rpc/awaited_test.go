package rpc

import (
	"maps"
	"testing"
	"testing/synctest"
	"time"
)

// Too many is what all together await, also where it is somebody else at each look; who awaits most
// goes first, and no more go than must.
func TestWhoIsOver(t *testing.T) {
	const places = 1000
	for name, test := range map[string]struct {
		looks []map[string]int64 // calls that are awaited at each of them, a second apart
		every time.Duration
		want  map[string]bool // that are ended after the last one
	}{
		"one that awaits many":           {many(map[string]int64{"a": 256, "b": 200}), time.Second, map[string]bool{"a": true}},
		"several that await a half":      {many(map[string]int64{"a": 200, "b": 150, "c": 150, "d": 100}), time.Second, map[string]bool{"a": true}},
		"several that await all":         {many(map[string]int64{"a": 250, "b": 249, "c": 248, "d": 200, "e": 3}), time.Second, map[string]bool{"a": true, "b": true}},
		"several that await less":        {many(map[string]int64{"a": 249, "b": 250}), time.Second, nil},
		"nobody is refused for a while":  {many(map[string]int64{"a": 250, "b": 250}), 3 * time.Second, nil},
		"less at one look":               {[]map[string]int64{{"a": 250, "b": 250}, {"a": 250, "b": 250}, {"a": 250, "b": 249}, {"a": 250, "b": 250}}, time.Second, nil},
		"others at every look":           {[]map[string]int64{{"a": 250, "b": 250}, {"c": 250, "d": 250}, {"a": 250, "b": 250}, {"c": 250, "d": 251}}, time.Second, map[string]bool{"d": true}},
		"a half beside one that is over": {many(map[string]int64{"a": 400, "b": 200, "c": 199, "d": 102}), time.Second, map[string]bool{"a": true, "b": true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var c crowd
				links, ended := make(map[string]*link), make(map[string]bool)
				for i, look := range test.looks {
					for _, l := range links {
						c.of(l).calls.Store(0)
					}
					for name, calls := range look {
						if links[name] == nil {
							links[name] = &link{hangUp: func() { ended[name] = true }}
						}
						c.of(links[name]).calls.Store(calls)
					}
					time.Sleep(test.every)
					if n := c.thin(places); n > 0 && i+1 < len(test.looks) {
						t.Errorf("%d were ended at look %d", n, i)
					}
				}
				if !maps.Equal(ended, test.want) {
					t.Errorf("ended %v, want %v", ended, test.want)
				}
				if n := c.thin(places); n != 0 {
					t.Errorf("%d were ended at once after a look", n)
				}
			})
		})
	}
}

// many is the same at as many looks as it takes.
func many(calls map[string]int64) []map[string]int64 {
	return []map[string]int64{calls, calls, calls, calls}
}
