package httpadmit

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ErrHijack is what a guarded handler gets that wants to take the connection over: what
// goes over it then could be neither recorded nor replayed. It is http.ErrNotSupported.
var ErrHijack = fmt.Errorf("httpadmit: a guarded request's connection cannot be taken over: %w", http.ErrNotSupported)

// errReturned is what a goroutine gets that writes when the handler has returned.
var errReturned = errors.New("httpadmit: the handler has returned")

// recorder is the ResponseWriter of a guarded handler.
//
// It keeps the response back until what came of the request is recorded: nobody may see
// a complete answer that a retry could not get again. A response that outgrows the limit
// goes out while it is written, except its last byte, and is never complete for its
// reader before send. Where nobody could see that its end is missing, it does not go out
// at all.
//
// Its stage says what becomes of what is written: it moves on with the final status
// (writeHeader), when the body is over the limit (outgrow), and when the handler has returned
// (finish); then what was kept back goes out (send). The mutex is there for handlers that go on
// after their time: abandon cuts them off from the caller's writer, which is the server's again
// then, and all the rest goes on as before.
type recorder struct {
	w       http.ResponseWriter // the caller's
	request *http.Request       // the caller's
	limit   int                 // bytes of the body that are kept
	outside http.Header         // what the caller's writer had before the handler ran
	header  http.Header         // the handler's

	mu        sync.Mutex
	stage     stage
	abandoned bool        // the caller has got another answer
	head      head        // once there is a final status
	cut       bool        // http.TimeoutHandler wrote that: its handler has not returned
	body      []byte      // up to limit
	written   int64       // by the handler, and taken
	excess    bool        // it wrote more than it declared: nothing more is taken
	held      []byte      // the byte that is held back of what is streamed
	silent    bool        // the handler has returned, and has written nothing at all
	trailers  http.Header // that it has set by then; nil for one that it has announced only
}

// head is what stands before the body, as it was when the final status was written.
type head struct {
	status   int
	header   http.Header
	declared int64 // Content-Length; -1: none
}

func newRecorder(w http.ResponseWriter, r *http.Request, limit int) *recorder {
	return &recorder{
		w: w, request: r, limit: limit,
		outside: w.Header().Clone(), header: cloned(w.Header()),
	}
}

func cloned(h http.Header) http.Header {
	if h == nil {
		return http.Header{}
	}
	return h.Clone()
}

// Header implements http.ResponseWriter.
func (r *recorder) Header() http.Header { return r.header }

// WriteHeader implements http.ResponseWriter. Informational ones go out at once, and
// are not recorded.
func (r *recorder) WriteHeader(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.writeHeader(status)
}

func (r *recorder) writeHeader(status int) {
	// In the order of net/http: a status that comes too late is ignored, whatever it is.
	if r.stage != waiting {
		return
	}
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("httpadmit: invalid WriteHeader code %d", status))
	}
	// HTTP/2 has no protocol to switch to.
	if status < 200 && (status != http.StatusSwitchingProtocols || r.request.ProtoMajor > 1) {
		if !r.abandoned {
			r.put(r.header)
			r.w.WriteHeader(status)
			r.put(r.outside)
		}
		return
	}
	r.stage = r.stage.next(begins)
	r.head = newHead(status, r.header.Clone())
	r.cut = status == http.StatusServiceUnavailable && byTimeoutHandler()
}

func newHead(status int, header http.Header) head {
	h := head{status: status, header: header, declared: -1}
	if length := header.Get("Content-Length"); length != "" {
		n, err := strconv.ParseInt(length, 10, 64)
		if err == nil && n >= 0 {
			h.declared = n
		} else {
			delete(header, "Content-Length") // as net/http does
		}
	}
	return h
}

// sniff sets the content type that net/http would, so that a replay has the same one.
func (h *head) sniff(body []byte) {
	if _, has := h.header["Content-Type"]; has || len(body) == 0 || h.header.Get("Content-Encoding") != "" || h.header.Get("Transfer-Encoding") != "" {
		return
	}
	h.header.Set("Content-Type", http.DetectContentType(body))
}

// delimited reports whether it can be seen that the response is cut off: by its length, or
// since it comes in chunks or frames. Otherwise net/http ends it with the connection, in
// HTTP/1.0 and where the handler says "identity", and its end looks like any other.
func (h *head) delimited(request *http.Request) bool {
	coding := h.header.Get("Transfer-Encoding")
	return h.declared != -1 && (coding == "" || coding == "identity") || request.ProtoAtLeast(1, 1) && coding != "identity"
}

// delimit gives a response whose body is there as a whole its length, where it could not be seen
// otherwise that it is cut off.
func (h *head) delimit(request *http.Request, body []byte) {
	if h.delimited(request) || !bodyAllowed(h.status) || request.Method == http.MethodHead {
		return
	}
	h.header.Del("Transfer-Encoding")
	h.header.Set("Content-Length", strconv.Itoa(len(body)))
}

// byTimeoutHandler reports whether http.TimeoutHandler itself is what writes. Its own
// handler runs on another goroutine, under another name.
func byTimeoutHandler() bool {
	var callers [64]uintptr
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers[:])])
	for {
		frame, more := frames.Next()
		if frame.Function == "net/http.(*timeoutHandler).ServeHTTP" {
			return true
		}
		if !more {
			return false
		}
	}
}

// headBytesMost is how much of the body is kept that a handler writes as the answer to a HEAD.
// It is not sent. net/http takes the headers from it, a type from its first 512 bytes, and a
// length if all of it fits into a buffer of 2,048 bytes; with one byte more it takes none.
const headBytesMost = 2048 + 1

// bodyAllowed reports whether the status may have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

// Write implements http.ResponseWriter.
func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stage.ended() {
		return 0, errReturned
	}
	if r.stage == waiting {
		r.writeHeader(http.StatusOK)
	}
	switch {
	case len(p) == 0:
		return 0, nil
	case !bodyAllowed(r.head.status):
		return 0, http.ErrBodyNotAllowed
	}
	if r.excess = r.excess || r.head.declared != -1 && r.written+int64(len(p)) > r.head.declared; r.excess {
		return 0, http.ErrContentLength
	}
	r.written += int64(len(p))
	if r.request.Method == http.MethodHead {
		r.body = append(r.body, p[:min(len(p), headBytesMost-len(r.body))]...)
		return len(p), nil
	}
	if r.stage == keeping && len(r.body)+len(p) > r.limit {
		r.outgrow(p)
	}
	if r.stage == streaming {
		r.pass(p)
	}
	r.body = append(r.body, p[:min(len(p), r.limit-len(r.body))]...)
	return len(p), nil
}

// WriteString implements io.StringWriter.
func (r *recorder) WriteString(s string) (int, error) { return r.Write([]byte(s)) }

// ReadFrom implements io.ReaderFrom.
func (r *recorder) ReadFrom(from io.Reader) (int64, error) {
	return io.Copy(struct{ io.Writer }{r}, from)
}

// outgrow begins to let the response out, if it may go: with p it is more than is kept.
func (r *recorder) outgrow(p []byte) {
	r.head.sniff(append(slices.Clip(r.body), p[:min(len(p), 512)]...))
	if r.abandoned || !r.head.delimited(r.request) {
		r.stage = r.stage.next(spills)
		return
	}
	r.stage = r.stage.next(flows)
	r.put(r.head.header)
	r.w.WriteHeader(r.head.status)
	r.pass(r.body)
}

// pass lets bytes out, all but the last one. That the caller is gone is not the handler's
// business: what it does is recorded all the same.
func (r *recorder) pass(p []byte) {
	if len(p) == 0 {
		return
	}
	if len(r.held) > 0 {
		_, _ = r.w.Write(r.held)
	}
	_, _ = r.w.Write(p[:len(p)-1])
	r.held = append(r.held[:0], p[len(p)-1])
}

// Flush implements http.Flusher: see FlushError.
func (r *recorder) Flush() { _ = r.FlushError() }

// FlushError is for http.ResponseController. What is kept back stays back: a guarded
// response goes out when it is recorded. One that is streamed, because it is over the
// limit, is flushed as far as it went.
func (r *recorder) FlushError() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stage == waiting {
		r.writeHeader(http.StatusOK)
	}
	switch r.stage {
	case streaming:
		return http.NewResponseController(r.w).Flush()
	case keeping:
		// net/http would send the header now, with the type of what there is, or with none.
		r.head.sniff(r.body)
		if _, has := r.head.header["Content-Type"]; !has {
			r.head.header["Content-Type"] = nil
		}
	}
	return nil
}

// Hijack implements http.Hijacker. It is refused.
func (r *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, ErrHijack }

// SetReadDeadline is for http.ResponseController.
func (r *recorder) SetReadDeadline(deadline time.Time) error {
	return r.control(func(c *http.ResponseController) error { return c.SetReadDeadline(deadline) })
}

// SetWriteDeadline is for http.ResponseController.
func (r *recorder) SetWriteDeadline(deadline time.Time) error {
	return r.control(func(c *http.ResponseController) error { return c.SetWriteDeadline(deadline) })
}

// EnableFullDuplex is for http.ResponseController.
func (r *recorder) EnableFullDuplex() error {
	return r.control((*http.ResponseController).EnableFullDuplex)
}

// There is no Unwrap: what the caller's writer does, it does when the recorder says so.

func (r *recorder) control(do func(*http.ResponseController) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned || r.stage.ended() {
		return errReturned
	}
	return do(http.NewResponseController(r.w))
}

// finish ends the recording: the handler has returned.
func (r *recorder) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stage == waiting {
		r.silent = true
		r.writeHeader(http.StatusOK)
	}
	if r.stage = r.stage.next(returns); r.stage == kept {
		r.head.sniff(r.body)
	}
	r.trailers = http.Header{}
	for _, line := range r.head.header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); name != "" {
				r.trailers[name] = slices.Clone(r.header[name])
			}
		}
	}
	for name, values := range r.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			r.trailers[http.CanonicalHeaderKey(name)] = slices.Clone(values)
		}
	}
	maps.DeleteFunc(r.head.header, func(name string, _ []string) bool { return strings.HasPrefix(name, http.TrailerPrefix) })
}

// incomplete returns why the body that is kept is not the response's: it is over the limit, or
// shorter than it was said to be. nil: it is all there is.
func (r *recorder) incomplete() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.stage != kept:
		return fmt.Errorf("its body has %d bytes, and the limit is %d", r.written, r.limit)
	case r.head.declared == -1 || r.head.declared == r.written || !bodyAllowed(r.head.status) || r.request.Method == http.MethodHead:
		return nil
	}
	return fmt.Errorf("its body has %d bytes, and its Content-Length says %d", r.written, r.head.declared)
}

// abandon cuts the handler off from the caller, and reports whether it did: not if the
// caller has got a part of the response already.
func (r *recorder) abandon() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stage.out() || r.stage.ended() {
		return false
	}
	r.abandoned = true
	return true
}

// begun reports whether the caller has got a part of the response.
func (r *recorder) begun() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stage.out()
}

// withheld reports whether the response is one that cannot go out: the rest of it is gone.
func (r *recorder) withheld() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stage == dropped
}

// send gives the caller what was kept back.
func (r *recorder) send() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned {
		return
	}
	if r.stage.out() {
		_, _ = r.w.Write(r.held)
		for name, values := range r.trailers {
			delete(r.w.Header(), name) // what is announced would be sent as it was in the header, too
			r.w.Header()[http.TrailerPrefix+name] = values
		}
		return
	}
	r.head.delimit(r.request, r.body)
	r.put(r.head.header)
	write(r.w, r.head.status, r.body, r.trailers)
}

// write writes a whole response whose header is set.
func write(w http.ResponseWriter, status int, body []byte, trailers http.Header) {
	// net/http sends trailers of a short response only if they were announced.
	if len(trailers) > 0 && bodyAllowed(status) {
		w.Header()["Trailer"] = slices.Sorted(maps.Keys(trailers))
	}
	w.WriteHeader(status)
	if len(body) > 0 {
		_, _ = w.Write(body) // a caller that is gone hears nothing
	}
	for name, values := range trailers {
		w.Header()[name] = values
	}
}

// put makes a header the caller's, exactly.
func (r *recorder) put(header http.Header) {
	to := r.w.Header()
	maps.DeleteFunc(to, func(name string, _ []string) bool { _, has := header[name]; return !has })
	for name, values := range header {
		to[name] = slices.Clone(values)
		if values == nil {
			to[name] = nil // net/http is told to add none
		}
	}
}
