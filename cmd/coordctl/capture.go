package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/atmostonce/coordinator/client"
)

// Bounds of what is kept of a command's output.
const (
	outputBytesMax = 64 << 10
	// piecesMax is how many times the two streams may alternate in it. A program that
	// alternates more often has more of its older output left out.
	piecesMax = 4096
)

// stream is one of the two that a command writes to.
type stream int

const (
	streamStdout stream = iota
	streamStderr
)

var streamNames = [...]string{"stdout", "stderr"}

// piece is what was written to one stream in one go, between writes to the other.
type piece struct {
	stream stream
	bytes  []byte
}

// capture keeps the end of what a command writes, of both streams together and in the
// order in which it was read. It holds at most twice of what it keeps. Its methods may be
// called from any goroutine.
type capture struct {
	mu       sync.Mutex
	pieces   []piece
	bytes    int
	leftOut  int64
	held     [2]int   // bytes that have not been passed on yet, by stream
	unpassed [2]error // why a stream could not be passed on any more, by stream
	cut      error    // why what has not been passed on is not waited for
}

func newCapture() *capture { return &capture{} }

func (c *capture) add(to stream, written []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[to] += len(written)
	if over := len(written) - outputBytesMax; over > 0 {
		// Everything before it goes too, in trim.
		c.leftOut += int64(over)
		written = written[over:]
	}
	if len(written) == 0 {
		return
	}
	if last := len(c.pieces) - 1; last >= 0 && c.pieces[last].stream == to {
		c.pieces[last].bytes = append(c.pieces[last].bytes, written...)
	} else {
		c.pieces = append(c.pieces, piece{to, append([]byte(nil), written...)})
	}
	c.bytes += len(written)
	if c.bytes > 2*outputBytesMax || len(c.pieces) > 2*piecesMax {
		c.trim()
	}
}

// trim leaves out what is too much, the oldest first.
func (c *capture) trim() {
	for c.bytes > outputBytesMax || len(c.pieces) > piecesMax {
		first := &c.pieces[0]
		drop := len(first.bytes)
		if len(c.pieces) <= piecesMax {
			drop = min(drop, c.bytes-outputBytesMax)
		}
		first.bytes = first.bytes[drop:]
		c.bytes -= drop
		c.leftOut += int64(drop)
		if len(first.bytes) == 0 {
			c.pieces = c.pieces[1:]
		}
	}
	// What was cut off at the front is given back to the system.
	kept := make([]piece, len(c.pieces))
	for i, p := range c.pieces {
		kept[i] = piece{p.stream, append([]byte(nil), p.bytes...)}
	}
	c.pieces = kept
}

// passedOn notes that so many bytes of a stream were passed on, or that it cannot be any more.
func (c *capture) passedOn(s stream, bytes int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[s] -= bytes
	if c.unpassed[s] == nil {
		c.unpassed[s] = err
	}
}

// Why output is not passed on that is not waited for any longer.
var (
	errUntaken = errors.New("nobody took it in time")
	errCutOff  = errors.New("it was cut off by a second signal")
)

// cutOff notes why what has not been passed on is not waited for.
func (c *capture) cutOff(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cut = why
}

// brokenOffs returns why streams were not passed on as a whole.
func (c *capture) brokenOffs() [2]error {
	c.mu.Lock()
	defer c.mu.Unlock()
	why := c.unpassed
	for s := range why {
		if why[s] == nil && c.held[s] > 0 {
			why[s] = c.cut
		}
	}
	return why
}

// passing writes on what a command writes, and keeps the end of it. It never fails: that
// nobody reads this program's output any more is no reason to undo what the command is
// doing.
type passing struct {
	kept   *capture
	stream stream
	to     io.Writer
	broken error
}

// keep keeps what was read, and pass writes it on later.
func (p *passing) keep(written []byte) { p.kept.add(p.stream, written) }

func (p *passing) pass(written []byte) {
	if p.broken == nil {
		_, p.broken = p.to.Write(written)
	}
	p.kept.passedOn(p.stream, len(written), p.broken)
}

// Headers of a recorded run. The body is the kept output as it was written, both streams
// in the order in which they were read; the header says how long the pieces are. This is a
// format: what is recorded by one version of this program is replayed by others.
const (
	headerRun     = "coordctl-run"          // "1": the version of the format
	headerStreams = "coordctl-run-streams"  // lengths of the pieces, stdout and stderr in turn, stdout first: "120,0,7"
	headerLeftOut = "coordctl-run-left-out" // bytes of output before these that were not kept; absent: none
	headerOutput  = "coordctl-run-output"   // "omitted": none was to be kept, or could be

	formatOfRun = "1"
	omitted     = "omitted"
)

// response is what is recorded of a run.
func (c *capture) response(status int) client.Response {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trim()
	var (
		lengths []string
		body    []byte
	)
	for _, p := range c.pieces {
		if len(lengths)%2 != int(p.stream) {
			lengths = append(lengths, "0")
		}
		lengths = append(lengths, strconv.Itoa(len(p.bytes)))
		body = append(body, p.bytes...)
	}
	response := client.Response{
		Code: status, ContentType: "application/octet-stream", Body: body,
		Headers: []client.Header{{Name: headerRun, Value: formatOfRun}, {Name: headerStreams, Value: strings.Join(lengths, ",")}},
	}
	if c.leftOut > 0 {
		response.Headers = append(response.Headers, client.Header{Name: headerLeftOut, Value: strconv.FormatInt(c.leftOut, 10)})
	}
	return response
}

// withoutOutput is what is recorded of a run whose output is not.
func withoutOutput(status int) client.Response {
	return client.Response{Code: status, Headers: []client.Header{{Name: headerRun, Value: formatOfRun}, {Name: headerOutput, Value: omitted}}}
}

// recorded is a run that is over.
type recorded struct {
	status  int
	pieces  []piece
	leftOut int64
	omitted bool
}

// ofRun reports whether a response was recorded by a run.
func ofRun(r client.Response) bool {
	return slices.ContainsFunc(r.Headers, func(h client.Header) bool { return h.Name == headerRun })
}

// decodeRun reads what was recorded. A response without a header of ours was given by hand,
// by who settled a run (coordctl resolve --applied --code 0): its body is stdout.
func decodeRun(r client.Response) (recorded, error) {
	if r.Code < 0 || r.Code > 255 {
		return recorded{}, fmt.Errorf("its code, %d, is no exit status", r.Code)
	}
	run := recorded{status: r.Code}
	headers := make(map[string]string)
	for _, h := range r.Headers {
		headers[h.Name] = h.Value
	}
	switch format, ours := headers[headerRun]; {
	case r.Omitted():
		run.omitted = true
		return run, nil
	case !ours:
		run.pieces = []piece{{streamStdout, r.Body}}
		return run, nil
	case format != formatOfRun:
		return recorded{}, fmt.Errorf("its format, %q, is a newer one", format)
	case headers[headerOutput] == omitted:
		run.omitted = true
		return run, nil
	}
	if text := headers[headerLeftOut]; text != "" {
		var err error
		if run.leftOut, err = strconv.ParseInt(text, 10, 64); err != nil || run.leftOut < 0 {
			return recorded{}, errDamaged
		}
	}
	body := r.Body
	if lengths := headers[headerStreams]; lengths != "" {
		for i, text := range strings.Split(lengths, ",") {
			n, err := strconv.ParseUint(text, 10, 31)
			if err != nil || n > math.MaxInt32 || int(n) > len(body) {
				return recorded{}, errDamaged
			}
			run.pieces = append(run.pieces, piece{stream(i % 2), body[:n]})
			body = body[n:]
		}
	}
	if len(body) > 0 {
		return recorded{}, errDamaged
	}
	return run, nil
}

var errDamaged = errors.New("its headers do not fit its body")
