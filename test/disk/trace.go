package disk

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// traced are the system calls that change files, or could. What the model of the file
// system does not know is an error there when it is used on a file of the directory:
// nothing is left out in silence.
var traced = strings.Join([]string{
	"open", "openat", "openat2", "creat", "close", "dup", "dup2", "dup3",
	"write", "writev", "pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice",
	"truncate", "ftruncate", "fallocate", "mmap",
	"fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "msync",
	"rename", "renameat", "renameat2", "link", "linkat", "symlink", "symlinkat",
	"unlink", "unlinkat", "rmdir", "mkdir", "mkdirat",
}, ",")

// stringBytesMax bounds what strace shows of one write.
const stringBytesMax = 64 << 20

// Tracing returns the command before a program's that has strace write what it does
// into a file. The program stays the direct child, with its own process id. More options
// are strace's own.
func Tracing(output string, more ...string) []string {
	return slices.Concat([]string{
		"strace", "-D", "-f", "-q", "--seccomp-bpf", "-ttt", "-xx", "-s", strconv.Itoa(stringBytesMax),
		"-e", "trace=" + traced, "-o", output,
	}, more, []string{"--"})
}

// Available returns why strace cannot be used here, or nil.
func Available() error {
	path, err := exec.LookPath("strace")
	if err != nil {
		return errors.New("strace is not installed")
	}
	out, err := exec.Command(path, "-f", "-q", "--seccomp-bpf", "-e", "trace=openat", "-o", os.DevNull, "true").CombinedOutput()
	if err != nil {
		return fmt.Errorf("strace cannot trace here: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// Call is one system call. Its effect came about between its entry and its exit, which
// are places in the trace: one call was before another if it had returned
// before the other was made.
type Call struct {
	Name        string
	Arguments   []string
	Result      int64
	Failed      bool
	Entry, Exit int   // Exit is never where it did not return
	At          int64 // when it was made, in µs since 1970
}

// never is the exit of a call that did not return, because its process was killed.
const never = int(^uint(0) >> 1)

// Read reads the trace of one life of a process, and numbers the places in it from
// first on. It returns how many there are.
func Read(input io.Reader, first int) (calls []Call, places int, err error) {
	scanner := bufio.NewReaderSize(input, 1<<20)
	under := make(map[string]int) // the call that a thread is in
	cut := make(map[string]string)
	for place := first; ; place++ {
		line, err := scanner.ReadString('\n')
		if errors.Is(err, io.EOF) && line == "" {
			return calls, place - first, nil
		}
		if err != nil {
			return nil, 0, fmt.Errorf("the trace ends within a line: %w", err)
		}
		thread, stamp, text, err := split(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, 0, err
		}
		switch {
		case strings.HasPrefix(text, "---"), strings.HasPrefix(text, "+++"):
			continue
		case strings.HasPrefix(text, "<... "):
			_, rest, _ := strings.Cut(text, " resumed>")
			i, ok := under[thread]
			if !ok {
				return nil, 0, fmt.Errorf("a call goes on that never began: %.200s", line)
			}
			delete(under, thread)
			calls[i].Exit = place
			if err := calls[i].finish(cut[thread] + rest); err != nil {
				return nil, 0, err
			}
		case strings.HasSuffix(text, "<unfinished ...>"):
			text = strings.TrimSuffix(text, "<unfinished ...>")
			text = strings.TrimSuffix(text, " ")
			under[thread], cut[thread] = len(calls), text
			c := Call{Entry: place, Exit: never, At: stamp}
			c.name(text + ")")
			calls = append(calls, c)
		default:
			c := Call{Entry: place, Exit: place, At: stamp}
			if err := c.finish(text); err != nil {
				return nil, 0, err
			}
			calls = append(calls, c)
		}
	}
}

// split takes the thread and the time off a line.
func split(line string) (thread string, at int64, text string, err error) {
	thread, rest, _ := strings.Cut(line, " ")
	stamp, text, ok := strings.Cut(strings.TrimLeft(rest, " "), " ")
	seconds, micros, dot := strings.Cut(stamp, ".")
	s, err1 := strconv.ParseInt(seconds, 10, 64)
	us, err2 := strconv.ParseInt(micros, 10, 64)
	if !ok || !dot || err1 != nil || err2 != nil || len(micros) != 6 {
		return "", 0, "", fmt.Errorf("not a line of a trace: %.200s", line)
	}
	return thread, s*1_000_000 + us, text, nil
}

// name takes what was given to the call from its beginning.
func (c *Call) name(text string) {
	name, rest, _ := strings.Cut(text, "(")
	c.Name = name
	if end := strings.LastIndex(rest, ")"); end >= 0 {
		rest = rest[:end]
	}
	c.Arguments = strings.Split(rest, ", ")
}

// finish takes everything from the whole text of a call.
func (c *Call) finish(text string) error {
	end := strings.LastIndex(text, " = ")
	if end < 0 {
		return fmt.Errorf("a call without a result: %.200s", text)
	}
	c.name(strings.TrimRight(text[:end], " "))
	result, _, _ := strings.Cut(text[end+len(" = "):], " ")
	if result == "?" { // the process ended inside of it
		c.Exit = never
		return nil
	}
	value, err := strconv.ParseInt(result, 0, 64)
	if err != nil && c.Name != "mmap" { // an address may have the highest bit set
		return fmt.Errorf("a call with the result %q: %.200s", result, text)
	}
	c.Result, c.Failed = value, value < 0
	return nil
}

// number returns an argument that is one.
func (c *Call) number(i int) (int64, error) {
	if i >= len(c.Arguments) {
		return 0, fmt.Errorf("%s has %d arguments", c.Name, len(c.Arguments))
	}
	return strconv.ParseInt(c.Arguments[i], 0, 64)
}

// bytes returns an argument that is a string.
func (c *Call) bytes(i int) ([]byte, error) {
	if i >= len(c.Arguments) {
		return nil, fmt.Errorf("%s has %d arguments", c.Name, len(c.Arguments))
	}
	quoted := c.Arguments[i]
	if len(quoted) < 2 || quoted[0] != '"' || quoted[len(quoted)-1] != '"' {
		return nil, fmt.Errorf("%s: an argument that is not shown as a whole: %.100s", c.Name, quoted)
	}
	return hex.DecodeString(strings.ReplaceAll(quoted[1:len(quoted)-1], `\x`, ""))
}

// path returns an argument that is an absolute path.
func (c *Call) path(i int) (string, error) {
	raw, err := c.bytes(i)
	if err == nil && !filepath.IsAbs(string(raw)) {
		err = fmt.Errorf("%s: a path that is not absolute: %q", c.Name, raw)
	}
	return filepath.Clean(string(raw)), err
}

// Ended waits until strace has written that the process with that id has ended, which
// is the last thing that it writes.
func Ended(output string, pid int, within time.Duration) error {
	mark := strconv.Itoa(pid) + " "
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		end, err := tailOf(output, 64<<10)
		if err != nil {
			return err
		}
		for line := range strings.Lines(end) {
			if strings.HasPrefix(line, mark) && strings.Contains(line, " +++ ") && strings.HasSuffix(line, "\n") {
				return nil
			}
		}
	}
	return fmt.Errorf("strace has not told of the end of process %d within %v", pid, within)
}

func tailOf(path string, size int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close() //nolint:errcheck // it was only read
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	from := max(0, info.Size()-size)
	raw, err := io.ReadAll(io.NewSectionReader(file, from, info.Size()-from))
	return string(raw), err
}
