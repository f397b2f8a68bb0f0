package httpadmit

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// What a handler writes when it was cut off has not begun to reach its caller, however much it
// is: the caller is answered otherwise. One that has begun cannot be cut off.
func TestAbandoned(t *testing.T) {
	w := httptest.NewRecorder()
	cut := newRecorder(w, newRequest(), 10)
	if !cut.abandon() || cut.begun() {
		t.Fatal("it is not cut off")
	}
	_, err := cut.Write([]byte(strings.Repeat("x", 100)))
	if cut.finish(); err != nil || cut.begun() || w.Body.Len() != 0 || len(w.Header()) != 0 {
		t.Errorf("%v, begun: %v, %d bytes, %v", err, cut.begun(), w.Body.Len(), w.Header())
	}
	if cut.send(); w.Body.Len() != 0 {
		t.Error("it answers for a handler that was cut off")
	}
	goes := newRecorder(w, newRequest(), 10)
	if _, err := goes.Write([]byte(strings.Repeat("x", 100))); err != nil || !goes.begun() || goes.abandon() {
		t.Errorf("%v, begun: %v", err, goes.begun())
	}
}
