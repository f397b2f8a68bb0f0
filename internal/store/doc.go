// Package store keeps one shard's state in one file, and answers for nothing
// else: what is decided comes from package admission, when it is decided comes
// from whoever calls [Store.Update], in the order of the log.
//
// # What is where
//
// The file is a bbolt database with three buckets. "records" maps a sequence
// (8 bytes, big-endian, given out in the order of the log) to a record; a response
// of at most 1 KiB lies within it. "responses" maps the same sequence to a longer
// response. "meta" holds the format's version, whose file it is, the configuration
// of the Raft group and the head: applied position, clock, counter, last sequence,
// and a count and digest of everything else.
//
// Where a record is, and when its alarm is due, is known in memory only: 48 bytes
// a record, without a pointer, rebuilt by one sequential scan when the file is
// opened. Records in the order of their arrival make a flush write few pages; an
// order by key or by deadline would scatter it over the whole file (see
// docs/decisions/0001-state-in-arrival-order.md).
//
// # Write-behind
//
// An update changes the gathering layer in memory and returns. A goroutine freezes
// that layer and commits it in one transaction, with the position that it was
// applied up to. Readers look at the gathering layer, then at the one that is
// being written, then at the file. What a crash loses is replayed from the Raft
// log, from the durable position on.
//
// # Invariants
//
// The tests name them.
//
//  1. The durable state is the state as of exactly its durable position:
//     everything up to it and nothing after it.
//  2. Readers see every update as a whole or not at all, deletions included.
//  3. A position is applied at most once: an update at or before the applied
//     position changes nothing.
//  4. After a failed write or sync nothing answers with success again.
//  5. The index says what the records say: each record is in it once, by identity
//     and, where its alarm is not [admission.Never], by (alarm, sequence).
//  6. Memory is bounded: what is gathered by [Config.GatheredBytesMax] and one
//     update, the index by 64 bytes a record.
//  7. A file is read only after it has been checked, and replaced only by one that
//     has been: what is empty, foreign, torn or of another shard is refused by name
//     and left alone.
//  8. What was put is got back byte for byte or not at all: every record and every
//     response carries a checksum, and the head a digest over all of them.
//
// # Failures
//
// An error that names the file comes from [Open] and [Store.Install] and concerns
// what they were given. A write or sync that fails later, or a page that cannot be
// read any more, fails the store: [Config.Fatal] is told once, and every call
// returns [ErrFailed] from then on. There is no way back but a new process. A copy for
// which there is no room is refused ([ErrNoSpace]), and fails nothing.
package store
