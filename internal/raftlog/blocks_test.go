package raftlog

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/atmostonce/coordinator/internal/disk"
)

// waysToWrite are those that a file system may take.
var waysToWrite = map[string]func(t *testing.T) *blockWriter{
	"past the page cache": func(*testing.T) *blockWriter { return newBlockWriter(testOptions().Logger) },
	"through the page cache": func(*testing.T) *blockWriter {
		w := newBlockWriter(testOptions().Logger)
		w.cached = true
		return w
	},
	"past the page cache is not opened": func(t *testing.T) *blockWriter {
		w := newBlockWriter(testOptions().Logger)
		refused := false
		w.open = func(path string, direct bool) (*os.File, error) {
			if direct {
				if refused {
					t.Error("asked again after a refusal")
				}
				refused = true
				return nil, &os.PathError{Op: "open", Path: path, Err: anyRefusal(t)}
			}
			return openBlocks(path, false)
		}
		return w
	},
	"past the page cache is not written": func(*testing.T) *blockWriter {
		w := newBlockWriter(testOptions().Logger)
		// A kernel that asks for aligned memory refuses this buffer; others write it.
		w.buffer = blocksInMemory(blockBufferMax + blockBytes)[1 : blockBufferMax+1]
		return w
	},
}

func anyRefusal(t *testing.T) error {
	if len(refusals) == 0 {
		t.Skip("here nothing is refused")
	}
	return refusals[0]
}

// TestBlocksAgainstAModel: whatever is written where a segment ends, by whichever writer,
// in whichever segment, is what the file holds; and zeros follow up to the end of the block
// at least, also where something else was before.
func TestBlocksAgainstAModel(t *testing.T) {
	for name, newWriter := range waysToWrite {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(1, 2))
			for range 2 {
				dir := t.TempDir()
				var files [2]*os.File
				var want [2][]byte
				for i := range files {
					files[i] = newSegmentFile(t, filepath.Join(dir, string(rune('a'+i))))
				}
				w := newWriter(t)
				for range 100 {
					i := random.IntN(2)
					if random.IntN(5) > 0 {
						i = 0
					}
					switch random.IntN(20) {
					case 0: // another process
						must(t, errors.Join(w.close(files[0].Name()), w.close(files[1].Name())))
						w = newWriter(t)
					case 1: // that had recovered from a torn write
						want[i] = want[i][:random.IntN(len(want[i])+1)]
					case 2: // or that was closed without being sealed
						must(t, w.close(files[i].Name()))
					}
					src := make([]byte, 1+random.IntN(1<<random.IntN(19)))
					for j := range src {
						src[j] = byte(1 + random.IntN(255))
					}
					until, err := w.writeAt(files[i], src, int64(len(want[i])))
					must(t, err)
					want[i] = append(want[i], src...)
					if len(w.buffer) > blockBufferMax+blockBytes {
						t.Fatalf("%d bytes of buffer are kept", len(w.buffer))
					}
					compareSegment(t, files[i], want[i], until)
				}
				for i := range files {
					compareSegment(t, files[i], want[i], ceil(int64(len(want[i])), blockBytes))
					must(t, errors.Join(w.close(files[i].Name()), files[i].Close()))
				}
			}
		})
	}
}

func newSegmentFile(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	must(t, err)
	must(t, allocate(file, SegmentBytes))
	return file
}

// compareSegment compares a file with what it is to hold, and with zeros behind.
func compareSegment(t *testing.T, file *os.File, want []byte, until int64) {
	t.Helper()
	if until < int64(len(want)) || until%blockBytes != 0 {
		t.Fatalf("%d bytes are written up to %d", len(want), until)
	}
	got := make([]byte, until)
	if _, err := file.ReadAt(got, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:len(want)], want) {
		t.Fatalf("%d bytes are not what was written", len(want))
	}
	for i, b := range got[len(want):] {
		if b != 0 {
			t.Fatalf("byte %d behind the end is %d", i, b)
		}
	}
}

// TestTheTurnToThePageCacheIsTold: once, with the file and with what was refused.
func TestTheTurnToThePageCacheIsTold(t *testing.T) {
	var told bytes.Buffer
	w := waysToWrite["past the page cache is not opened"](t)
	w.logger = slog.New(slog.NewTextHandler(&told, nil))
	dir := t.TempDir()
	for _, name := range []string{"first", "second"} {
		file := newSegmentFile(t, filepath.Join(dir, name))
		for at := range int64(2) {
			_, err := w.writeAt(file, []byte("x"), at)
			must(t, err)
		}
		must(t, errors.Join(w.close(file.Name()), file.Close()))
	}
	line := told.String()
	if strings.Count(line, "\n") != 1 {
		t.Errorf("%q is not one line", line)
	}
	for _, part := range []string{"level=INFO", "path=" + filepath.Join(dir, "first"), anyRefusal(t).Error()} {
		if !strings.Contains(line, part) {
			t.Errorf("%q does not say %q", line, part)
		}
	}
}

// TestReadersSeeWhatWasWritten: who reads through the page cache finds everything whose
// write has returned, however often the same blocks are read meanwhile.
func TestReadersSeeWhatWasWritten(t *testing.T) {
	file := newSegmentFile(t, filepath.Join(t.TempDir(), "segment"))
	defer file.Close()
	w := newBlockWriter(testOptions().Logger)
	content := make([]byte, 0, 2<<20)
	for i := range cap(content) {
		content = append(content, byte(1+i%251))
	}
	var mu sync.Mutex
	end, done := 0, false
	var reading sync.WaitGroup
	for range 2 {
		reading.Go(func() {
			got := make([]byte, 3*blockBytes)
			for {
				mu.Lock()
				end, done := end, done
				mu.Unlock()
				if done {
					return
				}
				from := max(0, end-len(got))
				if n, err := file.ReadAt(got[:end-from], int64(from)); err != nil || !bytes.Equal(got[:n], content[from:end]) {
					t.Errorf("up to %d it reads something else, error %v", end, err)
					return
				}
			}
		})
	}
	random := rand.New(rand.NewPCG(3, 4))
	for at := 0; at < len(content); {
		next := min(len(content), at+1+random.IntN(5000))
		if _, err := w.writeAt(file, content[at:next], int64(at)); err != nil {
			t.Error(err)
			break
		}
		at = next
		mu.Lock()
		end = at
		mu.Unlock()
	}
	mu.Lock()
	done = true
	mu.Unlock()
	reading.Wait()
	must(t, w.close(file.Name()))
}

// TestBlocksThatCannotBeWritten: an error is told, and the next write begins anew.
func TestBlocksThatCannotBeWritten(t *testing.T) {
	file := newSegmentFile(t, filepath.Join(t.TempDir(), "segment"))
	defer file.Close()
	w := newBlockWriter(testOptions().Logger)
	broken := true
	w.open = func(path string, direct bool) (*os.File, error) {
		if broken {
			return os.Open(path) // no write succeeds
		}
		return openBlocks(path, direct)
	}
	if _, err := w.writeAt(file, []byte("lost"), 0); err == nil {
		t.Fatal("a file that is only read was written")
	}
	broken = false
	must(t, w.close(file.Name()))
	until, err := w.writeAt(file, []byte("kept"), 0)
	must(t, err)
	compareSegment(t, file, []byte("kept"), until)
	if _, err := w.writeAt(file, []byte("x"), 2*SegmentBytes+1); err == nil {
		t.Error("a write began behind the end of the file")
	}
	until, err = w.writeAt(file, []byte(" too"), 4)
	must(t, err)
	compareSegment(t, file, []byte("kept too"), until)

	must(t, w.close(file.Name()))
	must(t, os.Rename(file.Name(), file.Name()+".moved"))
	must(t, newSegmentFile(t, file.Name()).Close())
	if _, err := w.writeAt(file, []byte("x"), 8); !errors.Is(err, disk.ErrGone) {
		t.Errorf("a write to a file that has been replaced: %v", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
