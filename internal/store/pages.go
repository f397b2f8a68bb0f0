package store

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"os"
)

// bbolt takes the pages of a file as it finds them: one that points to nowhere is a
// panic or a fault, in one place in a goroutine of its own that nobody can recover.
// So a file's pages are looked at before bbolt sees them. This is bbolt's format,
// version 2: two meta pages, then a tree of branch and leaf pages.
const (
	boltMagic         = 0xED0CDAED
	boltVersion       = 2
	boltMetaBytes     = 64 // behind the page's header, the checksum included
	boltHeaderBytes   = 16 // of a page
	boltElementBytes  = 16 // of a leaf's or a branch's table
	boltBucketBytes   = 16 // a bucket's value: root page and counter
	boltPageBytesMin  = 1024
	boltPageBytesMax  = 16 << 20
	boltBranchFlag    = 0x01
	boltLeafFlag      = 0x02
	boltMetaFlag      = 0x04
	boltBucketElement = 0x01
	boltDepthMax      = 64
)

// boltMeta is what a meta page says.
type boltMeta struct {
	pageBytes int64
	root      uint64 // page of the root bucket
	pages     uint64 // that the tree may use: the high-water mark
	txid      uint64
}

// checkPages returns an error unless file holds a tree of pages that bbolt can
// walk. It reads the whole file once from front to back if it is not too large,
// which puts it into the page cache many times faster than walking the tree would.
func checkPages(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%w: it is no regular file", ErrForeign)
	}
	if info.Size() == 0 {
		return fmt.Errorf("%w: it is empty", ErrCorrupt)
	}
	meta, err := readMeta(file, info.Size())
	if err != nil {
		return err
	}
	if need := int64(meta.pages) * meta.pageBytes; meta.pages > uint64(1<<62/meta.pageBytes) || info.Size() < need {
		return fmt.Errorf("%w: it is torn: %d bytes long, %d pages of %d bytes are in use", ErrCorrupt, info.Size(), meta.pages, meta.pageBytes)
	}
	readAhead(file, int64(meta.pages)*meta.pageBytes)
	w := pageWalk{file: file, boltMeta: meta, seen: make([]uint64, meta.pages/64+1)}
	return w.tree(meta.root, 0)
}

// readAheadBytesMax bounds how much is read for nothing but to be in the cache.
const readAheadBytesMax = 8 << 30

// readAhead reads the first size bytes and forgets them. Errors come up again where
// somebody needs what could not be read.
func readAhead(file io.ReaderAt, size int64) {
	if size <= readAheadBytesMax {
		_, _ = io.CopyBuffer(io.Discard, onlyReader{io.NewSectionReader(file, 0, size)}, make([]byte, 1<<20))
	}
}

// onlyReader hides WriterTo, which would use a small buffer.
type onlyReader struct{ io.Reader }

// readMeta returns the newer of the two meta pages that are whole.
func readMeta(file io.ReaderAt, size int64) (boltMeta, error) {
	var best boltMeta
	found, known := false, false
	consider := func(offset int64) {
		var page [boltHeaderBytes + boltMetaBytes]byte
		if _, err := file.ReadAt(page[:], offset); err != nil {
			return
		}
		meta, magic, ok := parseMeta(page[:])
		known = known || magic
		if ok && (!found || meta.txid > best.txid) {
			best, found = meta, true
		}
	}
	consider(0)
	if found {
		consider(best.pageBytes)
	} else {
		for pageBytes := int64(boltPageBytesMin); pageBytes <= boltPageBytesMax && pageBytes < size; pageBytes *= 2 {
			consider(pageBytes)
		}
	}
	switch {
	case found:
		return best, nil
	case known:
		return boltMeta{}, fmt.Errorf("%w: both of its meta pages are broken", ErrCorrupt)
	default:
		return boltMeta{}, fmt.Errorf("%w: it does not begin as one", ErrForeign)
	}
}

// parseMeta also tells whether the page has the mark of a meta page at all.
func parseMeta(page []byte) (meta boltMeta, magic, ok bool) {
	content := page[boltHeaderBytes:]
	magic = binary.NativeEndian.Uint32(content) == boltMagic
	sum := fnv.New64a()
	_, _ = sum.Write(content[:boltMetaBytes-8])
	meta = boltMeta{
		pageBytes: int64(binary.NativeEndian.Uint32(content[8:])),
		root:      binary.NativeEndian.Uint64(content[16:]),
		pages:     binary.NativeEndian.Uint64(content[40:]),
		txid:      binary.NativeEndian.Uint64(content[48:]),
	}
	ok = magic && binary.NativeEndian.Uint32(content[4:]) == boltVersion &&
		binary.NativeEndian.Uint64(content[boltMetaBytes-8:]) == sum.Sum64() &&
		meta.pageBytes >= boltPageBytesMin && meta.pageBytes <= boltPageBytesMax &&
		meta.pageBytes&(meta.pageBytes-1) == 0 && meta.root >= 2 && meta.root < meta.pages
	return meta, magic, ok
}

// pageWalk visits every page of a tree once.
type pageWalk struct {
	boltMeta
	file io.ReaderAt
	seen []uint64 // a bit a page
}

func (w *pageWalk) broken(id uint64, what string) error {
	return fmt.Errorf("%w: page %d of %d: %s", ErrCorrupt, id, w.pages, what)
}

// tree checks the page and everything beneath it.
func (w *pageWalk) tree(id uint64, depth int) error {
	if id < 2 || id >= w.pages {
		return w.broken(id, "is not within the file")
	}
	if depth > boltDepthMax {
		return w.broken(id, "lies too deep")
	}
	page := make([]byte, w.pageBytes)
	if _, err := w.file.ReadAt(page, int64(id)*w.pageBytes); err != nil {
		return fmt.Errorf("%w: page %d of %d: %w", ErrCorrupt, id, w.pages, err)
	}
	flags := binary.NativeEndian.Uint16(page[8:])
	count := uint64(binary.NativeEndian.Uint16(page[10:]))
	overflow := uint64(binary.NativeEndian.Uint32(page[12:]))
	switch {
	case binary.NativeEndian.Uint64(page) != id:
		return w.broken(id, "says that it is another")
	case flags != boltBranchFlag && flags != boltLeafFlag:
		return w.broken(id, "is of an unknown kind")
	case overflow >= w.pages-id:
		return w.broken(id, "reaches beyond the file")
	case flags == boltBranchFlag && count == 0:
		return w.broken(id, "is a branch without a child")
	}
	for other := id; other <= id+overflow; other++ {
		if w.seen[other/64]&(1<<(other%64)) != 0 {
			return w.broken(other, "is used twice")
		}
		w.seen[other/64] |= 1 << (other % 64)
	}
	span := int64(overflow+1) * w.pageBytes
	table := boltHeaderBytes + int64(count)*boltElementBytes
	if table > span {
		return w.broken(id, "has a table longer than itself")
	}
	if table > int64(len(page)) {
		page = make([]byte, table)
		if _, err := w.file.ReadAt(page, int64(id)*w.pageBytes); err != nil {
			return fmt.Errorf("%w: page %d of %d: %w", ErrCorrupt, id, w.pages, err)
		}
	}
	for at := int64(boltHeaderBytes); at < table; at += boltElementBytes {
		if err := w.element(id, flags, page[at:at+boltElementBytes], at, span, depth); err != nil {
			return err
		}
	}
	return nil
}

// element checks one entry of a page's table, which lies at the offset at.
func (w *pageWalk) element(id uint64, flags uint16, element []byte, at, span int64, depth int) error {
	first, second, third, fourth := binary.NativeEndian.Uint32(element), binary.NativeEndian.Uint32(element[4:]),
		binary.NativeEndian.Uint32(element[8:]), binary.NativeEndian.Uint32(element[12:])
	if flags == boltBranchFlag {
		if at+int64(first)+int64(second) > span {
			return w.broken(id, "has a key beyond its end")
		}
		return w.tree(binary.NativeEndian.Uint64(element[8:]), depth+1)
	}
	value := at + int64(second) + int64(third)
	if value+int64(fourth) > span {
		return w.broken(id, "has a value beyond its end")
	}
	if first&boltBucketElement == 0 {
		return nil
	}
	if fourth < boltBucketBytes {
		return w.broken(id, "has a bucket that is too short")
	}
	var bucket [boltBucketBytes + boltHeaderBytes]byte
	n := min(int64(len(bucket)), int64(fourth))
	if _, err := w.file.ReadAt(bucket[:n], int64(id)*w.pageBytes+value); err != nil {
		return fmt.Errorf("%w: page %d of %d: %w", ErrCorrupt, id, w.pages, err)
	}
	if root := binary.NativeEndian.Uint64(bucket[:]); root != 0 {
		return w.tree(root, depth+1)
	}
	if fourth < boltBucketBytes+boltHeaderBytes {
		return w.broken(id, "has a bucket that is too short")
	}
	return nil
}
