package main

import "syscall"

// dieWithParent makes the kernel kill a process with the thread that starts it.
func dieWithParent(attributes *syscall.SysProcAttr) { attributes.Pdeathsig = syscall.SIGKILL }
