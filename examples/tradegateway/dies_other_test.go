//go:build !linux

package main

import "syscall"

// dies has nothing to ask for here: processes are killed when their test ends.
func dies() *syscall.SysProcAttr { return nil }
