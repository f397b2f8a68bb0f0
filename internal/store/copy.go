package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"
)

// Copy is a consistent copy of the state, to be read once from front to back and
// installed elsewhere by [Store.Install]. It is a state file without free pages,
// and a trailer with a checksum over all of it. It is for one goroutine.
type Copy struct {
	Position           Position
	ConfigurationIndex uint64
	Configuration      []byte
	Size               int64 // bytes to read, the trailer included

	file     *os.File
	content  int64 // bytes before the trailer
	read     int64
	checksum uint32
	trailer  []byte // what is left of it, once the content is read
}

// A copy's trailer: a mark, the length of what precedes it, and the CRC-32C of that.
const (
	trailerMark  = "admcopy1"
	trailerBytes = len(trailerMark) + 8 + checksumBytes
)

// copyBytes is how much is written in one transaction of a copy.
const copyBytes = 16 << 20

// copyPagesMore is how many pages of a copy are of none of the state's: the list of free ones,
// and what its last transactions wrote anew.
const copyPagesMore = 16

// Copy makes everything durable and returns a copy of it, in a temporary file next
// to the state file. It takes as long as reading the state and writing it without
// a sync; updates go on meanwhile. One copy is made at a time of all states that
// share the [Space], and none for which that has no room.
func (s *Store) Copy() (*Copy, error) {
	space := s.config.Space
	select {
	case space.copying <- struct{}{}:
		defer func() { <-space.copying }()
	case <-s.noCopies:
		return nil, fileError(s.config.Path, ErrClosed)
	}
	if err := s.Flush(); err != nil {
		return nil, err
	}
	c := &Copy{}
	err := s.long(func(tx *bolt.Tx, h head) error {
		room := copyRoom(tx)
		if err := space.Take(room); err != nil {
			return fileError(s.config.Path, fmt.Errorf("no copy of it is made: %w", err))
		}
		defer space.Give(room)
		return s.copy(tx, h, c)
	})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// copyRoom is what a copy of what the transaction sees takes at most, or a little more: it has
// no free pages, and its pages are filled to fillPercent where here they may be full.
func copyRoom(tx *bolt.Tx) int64 {
	stats, page := tx.DB().Stats(), tx.DB().Info().PageSize
	used := tx.Size() - int64(stats.FreePageN+stats.PendingPageN)*int64(page)
	return int64(float64(used)/fillPercent) + copyPagesMore*int64(page)
}

// copy makes a copy of what the transaction sees in a new file.
func (s *Store) copy(tx *bolt.Tx, h head, c *Copy) error {
	path, err := temporary(s.config.Path)
	if err != nil {
		return fileError(s.config.Path, err)
	}
	c.Position, c.ConfigurationIndex, c.Configuration = h.applied, h.configurationIndex, h.configuration
	err = s.copyTo(path, tx, h)
	if err == nil {
		err = c.open(path)
	}
	if err != nil {
		return errors.Join(fileError(path, err), os.Remove(path))
	}
	return nil
}

// temporary returns the name of a new, empty file that the next Open removes.
func temporary(path string) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+copySuffix)
	if err != nil {
		return "", err
	}
	return f.Name(), f.Close()
}

// copyTo writes a new file record by record, in their order: so it has no free
// pages, and full ones. The format, without which it is no state file, comes last.
func (s *Store) copyTo(path string, tx *bolt.Tx, h head) (err error) {
	target, err := createFile(path, fileOptions{
		mapBytes: s.config.MapBytes, openFile: os.OpenFile, noSync: true, syncFreelist: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.close()) }()
	for _, name := range [][]byte{recordsBucket, responsesBucket} {
		w := bulkWriter{file: target, bucket: name}
		if err := s.each(tx.Bucket(name), w.put); err != nil {
			return errors.Join(err, w.abandon())
		}
		if err := w.end(); err != nil {
			return err
		}
	}
	return target.format(s.config.Identification, &h)
}

// bulkWriter appends to a bucket in transactions of bounded size.
type bulkWriter struct {
	file   *file
	bucket []byte
	tx     *bolt.Tx
	target *bolt.Bucket
	bytes  int
}

func (w *bulkWriter) put(key, value []byte) (err error) {
	if w.tx == nil {
		if w.tx, err = w.file.db.Begin(true); err != nil {
			return err
		}
		if w.target, err = w.tx.CreateBucketIfNotExists(w.bucket); err != nil {
			return err
		}
		w.target.FillPercent = fillPercent
	}
	if err := w.target.Put(key, value); err != nil {
		return err
	}
	if w.bytes += len(key) + len(value); w.bytes >= copyBytes {
		return w.end()
	}
	return nil
}

func (w *bulkWriter) end() error {
	if w.tx == nil {
		return nil
	}
	tx := w.tx
	w.tx, w.bytes = nil, 0
	return tx.Commit()
}

func (w *bulkWriter) abandon() error {
	if w.tx == nil {
		return nil
	}
	return w.tx.Rollback()
}

// open opens what has been written. A file is longer than its pages, because it is
// made longer ahead of need: that is left out.
func (c *Copy) open(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	meta, err := readMeta(file, info.Size())
	if err != nil {
		return errors.Join(err, file.Close())
	}
	c.file, c.content = file, int64(meta.pages)*meta.pageBytes
	c.Size = c.content + int64(trailerBytes)
	return nil
}

// Read implements [io.Reader].
func (c *Copy) Read(p []byte) (int, error) {
	if c.read < c.content {
		n, err := c.file.Read(p[:min(int64(len(p)), c.content-c.read)])
		c.checksum = crc32.Update(c.checksum, checksumTable, p[:n])
		c.read += int64(n)
		if c.read == c.content {
			c.trailer = appendTrailer(nil, c.content, c.checksum)
			return n, nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return n, err
	}
	if len(c.trailer) == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.trailer)
	c.trailer = c.trailer[n:]
	return n, nil
}

// Close removes the temporary file.
func (c *Copy) Close() error {
	return errors.Join(c.file.Close(), os.Remove(c.file.Name()))
}

func appendTrailer(b []byte, content int64, checksum uint32) []byte {
	b = append(b, trailerMark...)
	b = binary.LittleEndian.AppendUint64(b, uint64(content))
	return binary.LittleEndian.AppendUint32(b, checksum)
}

// CopyBytes returns how long a copy is of which some bytes have been received into a file: its
// two meta pages say so, with which it begins. It is 0 as long as they have not come.
func CopyBytes(file io.ReaderAt, received int64) (int64, error) {
	meta, err := readMeta(file, received)
	page := int64(boltPageBytesMax) // as long as it is not known
	if err == nil {
		page = meta.pageBytes
	}
	if received < 2*page {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	pages := min(meta.pages, uint64(math.MaxInt64/2/meta.pageBytes)) // no disk has as many
	return int64(pages)*meta.pageBytes + int64(trailerBytes), nil
}

// takeTrailer checks a copy that has arrived against its trailer, and takes that
// off, which leaves a state file.
func takeTrailer(path string) (err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	content := info.Size() - int64(trailerBytes)
	trailer := make([]byte, trailerBytes)
	if content < 0 {
		return fmt.Errorf("%w: it is %d bytes long", ErrForeign, info.Size())
	}
	if _, err := file.ReadAt(trailer, content); err != nil {
		return err
	}
	if string(trailer[:len(trailerMark)]) != trailerMark {
		return fmt.Errorf("%w: it does not end as a copy", ErrForeign)
	}
	sum := crc32.New(checksumTable)
	if _, err := io.CopyBuffer(sum, onlyReader{io.NewSectionReader(file, 0, content)}, make([]byte, 1<<20)); err != nil {
		return err
	}
	if string(appendTrailer(nil, content, sum.Sum32())) != string(trailer) {
		return fmt.Errorf("%w: it is not as it was sent", ErrCorrupt)
	}
	return file.Truncate(content)
}
