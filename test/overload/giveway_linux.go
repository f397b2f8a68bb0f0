package overload

import (
	"os"
	"strconv"
	"syscall"
)

// giveWay has the callers of this process run when nodes have nothing to do: they share
// the processors here, and callers have machines of their own elsewhere. Nodes that run
// already are left as they are.
func giveWay() error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, thread := range threads { // those to come are as the ones that start them
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		if err := syscall.Setpriority(syscall.PRIO_PROCESS, id, niceness); err != nil {
			return err
		}
	}
	return nil
}

// niceness is about a tenth of a node's share of a processor.
const niceness = 10
