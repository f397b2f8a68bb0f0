package main

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/atmostonce/coordinator/client"
)

// What is kept is the end of what was written, of both streams together; each stream's part
// of it is the end of that stream, and recording it loses nothing.
func TestCaptureKeepsTheEnd(t *testing.T) {
	noise := make([]byte, 4*outputBytesMax)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	rapid.Check(t, func(t *rapid.T) {
		var (
			kept    = newCapture()
			written [2][]byte
			total   int
			source  = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		)
		for range rapid.IntRange(0, 60).Draw(t, "writes") {
			to := stream(source.IntN(2))
			at := source.IntN(outputBytesMax)
			chunk := noise[at : at+source.IntN([]int{3, 2000, 3 * outputBytesMax}[source.IntN(3)])]
			kept.add(to, chunk)
			written[to] = append(written[to], chunk...)
			total += len(chunk)
			if kept.bytes > 2*outputBytesMax || len(kept.pieces) > 2*piecesMax {
				t.Fatalf("it holds %d bytes in %d pieces", kept.bytes, len(kept.pieces))
			}
		}
		run, err := decodeRun(kept.response(7))
		if err != nil {
			t.Fatal(err)
		}
		var got [2][]byte
		for _, p := range run.pieces {
			got[p.stream] = append(got[p.stream], p.bytes...)
		}
		size := len(got[0]) + len(got[1])
		if size != min(total, outputBytesMax) || run.leftOut != int64(total-size) || run.status != 7 || run.omitted {
			t.Fatalf("%d of %d bytes, %d left out, status %d", size, total, run.leftOut, run.status)
		}
		for to := range got {
			if !bytes.HasSuffix(written[to], got[to]) {
				t.Fatalf("stream %d does not end with what was kept of it", to)
			}
		}
	})
}

// The order between the streams is kept; one that alternates too often loses its older part.
func TestCaptureKeepsTheOrder(t *testing.T) {
	kept := newCapture()
	kept.add(streamStderr, []byte("e"))
	kept.add(streamStdout, []byte("oo"))
	kept.add(streamStdout, []byte("o"))
	kept.add(streamStderr, []byte("ee"))
	response := kept.response(0)
	if string(response.Body) != "eoooee" || headerOf(response, headerStreams) != "0,1,3,2" || headerOf(response, headerLeftOut) != "" {
		t.Errorf("%q, %+v", response.Body, response.Headers)
	}

	kept = newCapture()
	for i := range 3 * piecesMax {
		kept.add(stream(i%2), []byte{byte(i)})
	}
	run, err := decodeRun(kept.response(0))
	if err != nil || len(run.pieces) != piecesMax || run.leftOut != 2*piecesMax {
		t.Errorf("%d pieces, %d left out, %v", len(run.pieces), run.leftOut, err)
	}
}

func headerOf(r client.Response, name string) string {
	for _, h := range r.Headers {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

func TestDecodeRun(t *testing.T) {
	ours := client.Header{Name: headerRun, Value: formatOfRun}
	with := func(body string, headers ...string) client.Response {
		r := client.Response{Code: 3, Body: []byte(body), Headers: []client.Header{ours}}
		for i := 0; i < len(headers); i += 2 {
			r.Headers = append(r.Headers, client.Header{Name: headers[i], Value: headers[i+1]})
		}
		return r
	}
	pieces := func(texts ...string) (all []piece) {
		for i, text := range texts {
			all = append(all, piece{stream(i % 2), []byte(text)})
		}
		return all
	}
	for name, c := range map[string]struct {
		recorded client.Response
		want     recorded
		err      string
	}{
		"both streams":   {recorded: with("abc", headerStreams, "1,2"), want: recorded{status: 3, pieces: pieces("a", "bc")}},
		"nothing":        {recorded: with("", headerStreams, ""), want: recorded{status: 3}},
		"left out":       {recorded: with("a", headerStreams, "0,1", headerLeftOut, "9"), want: recorded{status: 3, pieces: pieces("", "a"), leftOut: 9}},
		"no output":      {recorded: withoutOutput(3), want: recorded{status: 3, omitted: true}},
		"by hand":        {recorded: client.Response{Code: 255, Body: []byte("a")}, want: recorded{status: 255, pieces: pieces("a")}},
		"a placeholder":  {recorded: client.Response{Headers: []client.Header{{Name: client.OmittedHeader, Value: "9"}}}, want: recorded{omitted: true}},
		"an HTTP status": {recorded: client.Response{Code: 256}, err: "is no exit status"},
		"a later format": {recorded: client.Response{Headers: []client.Header{{Name: headerRun, Value: "2"}}}, err: "newer"},
		"too short":      {recorded: with("ab", headerStreams, "1,2"), err: errDamaged.Error()},
		"too long":       {recorded: with("abcd", headerStreams, "1,2"), err: errDamaged.Error()},
		"no lengths":     {recorded: with("abcd"), err: errDamaged.Error()},
		"no number":      {recorded: with("a", headerStreams, "x"), err: errDamaged.Error()},
		"negative":       {recorded: with("a", headerStreams, "-1,2"), err: errDamaged.Error()},
		"huge":           {recorded: with("a", headerStreams, "9999999999999999999"), err: errDamaged.Error()},
		"left out what":  {recorded: with("a", headerStreams, "1", headerLeftOut, "-1"), err: errDamaged.Error()},
	} {
		got, err := decodeRun(c.recorded)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v, want %q", name, err, c.err)
			}
		case err != nil || !reflect.DeepEqual(got, c.want):
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// Whatever is stored, reading it back neither panics nor invents output.
func FuzzDecodeRun(f *testing.F) {
	f.Add(0, "1", "1,2", "", "", []byte("abc"))
	f.Add(255, "1", "", "7", omitted, []byte{})
	f.Add(1, "2", "0,0,0", "-1", "", []byte("x"))
	f.Fuzz(func(t *testing.T, code int, format, streams, leftOut, output string, body []byte) {
		run, err := decodeRun(client.Response{Code: code, Body: body, Headers: []client.Header{
			{Name: headerRun, Value: format}, {Name: headerStreams, Value: streams}, {Name: headerLeftOut, Value: leftOut}, {Name: headerOutput, Value: output},
		}})
		if err != nil || run.omitted {
			return
		}
		var all []byte
		for _, p := range run.pieces {
			all = append(all, p.bytes...)
		}
		if !bytes.Equal(all, body) || run.status != code || run.status > 255 {
			t.Errorf("%q became %+v", body, run)
		}
	})
}

// A reader that goes away does not end what the command is doing, and what it says is kept.
func TestPassingSurvivesItsReader(t *testing.T) {
	kept := newCapture()
	p := &passing{kept: kept, stream: streamStdout, to: brokenPipe{}}
	for range 2 {
		p.keep([]byte("abc"))
		p.pass([]byte("abc"))
	}
	if body := kept.response(0).Body; string(body) != "abcabc" {
		t.Errorf("kept %q", body)
	}
	if broken := kept.brokenOffs(); broken[streamStdout] == nil || broken[streamStderr] != nil {
		t.Errorf("noted %v", broken)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// Fingerprints are compared between versions of this program, so these never change; they
// were computed apart from it.
func TestFingerprints(t *testing.T) {
	for want, arguments := range map[string][]string{
		"1ad08ba85af9d6e217bcd37d3a653483d45499fd4760676e094db7db3acfa259": {"ls"},
		"b5dda195cf01d1acdd008a0d64de46482cbcdec807f3f9f57d0728a8f951e75a": {"ls", "-l"},
	} {
		if got := hex.EncodeToString(fingerprintOf(arguments)); got != want {
			t.Errorf("%q: %s", arguments, got)
		}
	}
	seen := map[string][]string{}
	for _, arguments := range [][]string{{"ls"}, {"ls", ""}, {"l", "s"}, {"ls -l"}, {"ls", "-l"}, {"", "ls"}} {
		got := string(fingerprintOf(arguments))
		if other, taken := seen[got]; taken {
			t.Errorf("%q and %q have one fingerprint", arguments, other)
		}
		seen[got] = arguments
	}
}

func TestNameOfThisProcess(t *testing.T) {
	if name := thisProcess(); len(name) > ownerBytesMax || !strings.Contains(name, " process ") {
		t.Errorf("%q", name)
	}
}
