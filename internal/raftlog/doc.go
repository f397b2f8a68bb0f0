// Package raftlog keeps a replica's Raft log on its disk, and answers for one thing: what
// was synced is there when it is opened again, as it was, or it is not opened.
//
// The log is a raft-wal with segments of 8 MiB, which also keeps raft's few values: its term
// and its vote. It is trusted with their bytes, and with little else:
//
//	log.go        the log as raft uses it: append, read, cut
//	chain.go      each entry is linked to all before it
//	seal.go       each entry and value has a checksum, looked at whenever it is read
//	end.go        a file beside the log that says up to where it was synced
//	recent.go     the last entries, in memory
//	tail.go       what a crash may leave behind in the last segment
//	filer.go      segments whose end was cut off are read, and full ones take no memory
//	index.go      the WAL's own index, whose failures are told, and what is a panic elsewhere
//	segments.go   the segments' files, and how many bytes they take
//	blocks.go     a write of whole blocks, past the page cache where that can be
//
// # Invariants
//
// The tests name most of them.
//
//  1. An append is durable when it returns, and the next segment is there to take the one
//     after it.
//  2. An index and a term name one entry: another one of a leader of the same term is
//     refused, and wraps [ErrDiverged].
//  3. What was synced is there when the log is opened: a log that ends before what the file
//     of the end says, or has another entry there, wraps [ErrDiverged]. Where it is that file
//     which is behind, as after a power cut, what the log has beyond it is kept.
//  4. What is read is what was written, or an error.
//  5. A directory that held a log before is not begun anew: term and vote would be gone.
//  6. Who reads an entry while the log is cut reads it, or hears that it is gone.
//
// Only the end file is written without a sync, so that after a power cut it may say less,
// never more. It is lowered, and synced, before the log is cut back.
//
// # Entries in memory
//
// An entry is read again soon after it was written: for each follower, and to be applied.
// The last of them, up to 64 and up to 1 MiB of data, are read from memory. They are put
// there once they are synced, and forgotten at every cut of the log, whichever end is cut.
// An entry that is read from the disk is checked by its seal; one from memory has never
// left it. Beside these, the log takes what an append of 4 MiB, or of one larger entry,
// needs: what is appended at once is stored in portions of that, and only the last segment
// keeps a buffer.
//
// # What may fail, and who hears of it
//
// [Open] returns an error that names the directory or the file. Every other error is that of
// a call, and says nothing about whether a write has reached the disk: who has failed to
// write opens the log anew, in a new process, and reads what is there. Files that are so
// damaged that what reads them panics are an error as well. Nothing here ends a process,
// times a call or waits for anything but the disk; package raftfsm does.
package raftlog
