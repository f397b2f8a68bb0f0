//go:build !linux

package process

import "syscall"

// attributes has nothing to ask for here: processes end when their test does.
func attributes() *syscall.SysProcAttr { return nil }
