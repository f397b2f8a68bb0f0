package raftfsm

import (
	"encoding/binary"
	"errors"
	"hash/crc32"

	"github.com/hashicorp/raft"
)

// An entry is stored with a seal: a CRC-32C over all that decides anything, behind its
// extensions, which raft leaves to the layers beneath it. The WAL checks what it has
// written last when it is opened, and nothing after that: an entry that was damaged
// since would be applied here, or sent to others as it is.
//
// (The WAL would take a codec of ours for this. But v0.4.0 marks every file with the
// number of its own, and then refuses to open them for any other.)

// errDamaged says that an entry is not what was stored.
var errDamaged = errors.New("it is damaged: its checksum does not match")

const sealBytes = crc32.Size

// sealed returns copies of the entries with their seals. Raft's own are left as they are:
// it reads them at the same time.
func sealed(logs []*raft.Log) []*raft.Log {
	copies, pointers := make([]raft.Log, len(logs)), make([]*raft.Log, len(logs))
	for i, log := range logs {
		copies[i] = *log
		extensions := make([]byte, 0, len(log.Extensions)+sealBytes)
		extensions = append(extensions, log.Extensions...)
		copies[i].Extensions = binary.BigEndian.AppendUint32(extensions, checksum(log))
		pointers[i] = &copies[i]
	}
	return pointers
}

// unseal checks an entry that was read, and takes its seal off.
func unseal(log *raft.Log) error {
	end := len(log.Extensions) - sealBytes
	if end < 0 {
		return errDamaged
	}
	seal := binary.BigEndian.Uint32(log.Extensions[end:])
	log.Extensions = log.Extensions[:end:end]
	if checksum(log) != seal {
		return errDamaged
	}
	if end == 0 {
		log.Extensions = nil
	}
	return nil
}

// checksum covers what the entry is, and where it stands in the log.
func checksum(log *raft.Log) uint32 {
	var head [3*8 + 1]byte
	binary.BigEndian.PutUint64(head[0:], log.Index)
	binary.BigEndian.PutUint64(head[8:], log.Term)
	binary.BigEndian.PutUint64(head[16:], uint64(len(log.Data)))
	head[24] = byte(log.Type)
	table := crc32.MakeTable(crc32.Castagnoli)
	sum := crc32.Checksum(head[:], table)
	sum = crc32.Update(sum, table, log.Data)
	return crc32.Update(sum, table, log.Extensions)
}
