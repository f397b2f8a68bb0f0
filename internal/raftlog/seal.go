package raftlog

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

// errDamaged says that something is not what was stored.
var errDamaged = errors.New("it is damaged: its checksum does not match")

const sealBytes = crc32.Size

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal returns two copies of the entry: with a link, as it is sent, and sealed as well,
// as it is stored. Raft's own is left as it is.
func seal(log *raft.Log, to link) (linked, stored *raft.Log) {
	l, s := *log, *log
	extensions := to.encode()
	l.Extensions = extensions[:linkBytes:linkBytes]
	s.Extensions = binary.BigEndian.AppendUint32(extensions, checksum(&l))
	return &l, &s
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
	return nil
}

// checksum covers all of an entry.
func checksum(log *raft.Log) uint32 {
	return crc32.Update(contentChecksum(log), castagnoli, log.Extensions)
}

// contentChecksum covers what the entry is, and where it stands in the log.
func contentChecksum(log *raft.Log) uint32 {
	var head [3*8 + 1]byte
	binary.BigEndian.PutUint64(head[0:], log.Index)
	binary.BigEndian.PutUint64(head[8:], log.Term)
	binary.BigEndian.PutUint64(head[16:], uint64(len(log.Data)))
	head[24] = byte(log.Type)
	return crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, log.Data)
}

// sealValue returns what is stored of one of raft's few values: its term and its vote, which
// the WAL's own index keeps without a checksum. One that was damaged upwards or to another
// name would be believed, and a vote given a second time.
func sealValue(key, value []byte) []byte {
	sealed := append(make([]byte, 0, len(value)+sealBytes), value...)
	return binary.BigEndian.AppendUint32(sealed, valueChecksum(key, value))
}

// unsealValue returns the value that was stored under the key. Nothing stands for itself.
func unsealValue(key, sealed []byte) ([]byte, error) {
	if len(sealed) == 0 {
		return nil, nil
	}
	end := len(sealed) - sealBytes
	if end < 0 || valueChecksum(key, sealed[:end]) != binary.BigEndian.Uint32(sealed[end:]) {
		return nil, errDamaged
	}
	return sealed[:end:end], nil
}

func valueChecksum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli), castagnoli, value)
}
