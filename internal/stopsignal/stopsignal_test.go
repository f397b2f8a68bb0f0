package stopsignal

import (
	"os"
	"syscall"
	"testing"
)

func TestName(t *testing.T) {
	for signal, want := range map[os.Signal]string{
		syscall.SIGTERM: "SIGTERM", os.Interrupt: "SIGINT", syscall.SIGHUP: "SIGHUP", syscall.SIGQUIT: "SIGQUIT",
		syscall.SIGKILL: "killed",
	} {
		if got := Name(signal); got != want {
			t.Errorf("%v is called %s, not %s", signal, got, want)
		}
	}
}
