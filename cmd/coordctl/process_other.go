//go:build unix && !linux

package main

import "syscall"

// dieWithParent has nothing to ask for here: the guard alone does it.
func dieWithParent(*syscall.SysProcAttr) {}
