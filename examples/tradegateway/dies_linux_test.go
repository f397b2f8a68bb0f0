package main

import "syscall"

// dies makes a process end with the test that started it, however that ends.
func dies() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
