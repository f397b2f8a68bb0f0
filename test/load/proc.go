package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Memory is what a process has resident, in bytes.
type Memory struct {
	Anonymous int64 // heap and stacks
	Mapped    int64 // of files, shared with the page cache
}

// ReadMemory reads /proc/PID/smaps_rollup, which is there on Linux only.
func ReadMemory(pid int) (Memory, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return Memory{}, err
	}
	kilobytes := make(map[string]int64)
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[2] == "kB" {
			if kilobytes[fields[0]], err = strconv.ParseInt(fields[1], 10, 64); err != nil {
				return Memory{}, err
			}
		}
	}
	anonymous := kilobytes["Anonymous:"] << 10
	return Memory{Anonymous: anonymous, Mapped: kilobytes["Rss:"]<<10 - anonymous}, nil
}

// clockTick is the unit of /proc/PID/stat on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// ReadCPU reads from /proc/PID/stat how much processor time a process has used.
func ReadCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	// The name in parentheses may hold anything; utime and stime are the 12th and
	// 13th field after it.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	total := time.Duration(0)
	for _, field := range fields[11:13] {
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(ticks) * clockTick
	}
	return total, nil
}
