// Package disk answers for names of files: that one which was made or renamed is there
// after a power cut, and that a file which a process has open is still the one that its
// path leads to. What is written to a file that was deleted or replaced is lost with it,
// however well it is synced.
//
// A check compares device and inode. An error that is not [ErrGone] says that it cannot
// tell, such as one of a disk that fails: whoever asks tries again later.
package disk
