package store

import (
	"bytes"
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
	boltFreelistFlag  = 0x10
	boltNoFreelist    = ^uint64(0) // in place of its page: there is none
	boltCountMax      = 0xffff     // of a freelist page: the first element is the count
	boltBucketElement = 0x01
	boltDepthMax      = 64
	boltTxidMax       = 1 << 62 // a file that is written to for ever does not come near
)

// boltMeta is what a meta page says.
type boltMeta struct {
	pageBytes int64
	root      uint64 // page of the root bucket
	freelist  uint64 // page that lists the free ones, or boltNoFreelist
	pages     uint64 // that the tree may use: the high-water mark
	txid      uint64
}

// CheckPages returns an error unless file holds a tree of pages that bbolt can walk and,
// where it lists the free ones, none of those is in use. It is for files of bbolt that
// others keep. It reads the whole file once from front to back if it is not too large,
// which puts it into the page cache many times faster than walking the tree would.
func CheckPages(file *os.File) error {
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
	return checkTree(file, info.Size())
}

func checkTree(file io.ReaderAt, size int64) error {
	meta, err := readMeta(file, size)
	if err != nil {
		return err
	}
	if meta.pages > uint64(size/meta.pageBytes) {
		return fmt.Errorf("%w: it is torn: %d bytes long, %d pages of %d bytes are in use", ErrCorrupt, size, meta.pages, meta.pageBytes)
	}
	readAhead(file, int64(meta.pages)*meta.pageBytes)
	w := pageWalk{file: file, boltMeta: meta, seen: make([]uint64, meta.pages/64+1)}
	if err := w.tree(meta.root, 0, bounds{}); err != nil || meta.freelist == boltNoFreelist {
		return err
	}
	return w.free(meta.freelist)
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

// readMeta returns the newer of the two meta pages that are whole, which is the one that
// bbolt goes by. One that is whole and makes no sense is an error: bbolt does not look
// whether it does, so another must not be taken in its place.
func readMeta(file io.ReaderAt, size int64) (boltMeta, error) {
	var best boltMeta
	found, known := false, false
	consider := func(offset int64) {
		var page [boltHeaderBytes + boltMetaBytes]byte
		if _, err := file.ReadAt(page[:], offset); err != nil {
			return
		}
		meta, magic, whole := parseMeta(page[:])
		known = known || magic
		if whole && (!found || meta.txid > best.txid) {
			best, found = meta, true
		}
	}
	consider(0)
	pageBytes := best.pageBytes
	if found {
		consider(pageBytes)
	}
	for at := int64(boltPageBytesMin); !found && at <= boltPageBytesMax && at < size; at *= 2 {
		consider(at)
		pageBytes = at
	}
	switch {
	case !found && known:
		return boltMeta{}, fmt.Errorf("%w: both of its meta pages are broken", ErrCorrupt)
	case !found:
		return boltMeta{}, fmt.Errorf("%w: it does not begin as one", ErrForeign)
	case pageBytes < boltPageBytesMin || pageBytes > boltPageBytesMax || pageBytes&(pageBytes-1) != 0 ||
		best.pageBytes != pageBytes || best.txid > boltTxidMax:
		return boltMeta{}, fmt.Errorf("%w: a meta page makes no sense: pages of %d bytes, transaction %d", ErrCorrupt, best.pageBytes, best.txid)
	}
	return best, nil
}

// parseMeta also tells whether the page has the mark of a meta page at all, and whether it
// is whole.
func parseMeta(page []byte) (meta boltMeta, magic, whole bool) {
	content := page[boltHeaderBytes:]
	magic = binary.NativeEndian.Uint32(content) == boltMagic
	sum := fnv.New64a()
	_, _ = sum.Write(content[:boltMetaBytes-8])
	meta = boltMeta{
		pageBytes: int64(binary.NativeEndian.Uint32(content[8:])),
		root:      binary.NativeEndian.Uint64(content[16:]),
		freelist:  binary.NativeEndian.Uint64(content[32:]),
		pages:     binary.NativeEndian.Uint64(content[40:]),
		txid:      binary.NativeEndian.Uint64(content[48:]),
	}
	whole = magic && binary.NativeEndian.Uint32(content[4:]) == boltVersion &&
		binary.NativeEndian.Uint64(content[boltMetaBytes-8:]) == sum.Sum64()
	return meta, magic, whole
}

// pageWalk visits every page of a tree once.
type pageWalk struct {
	boltMeta
	file    io.ReaderAt
	seen    []uint64 // a bit a page
	buffers [][]byte // a page for each level
}

// buffer returns room for a page of the level, which the levels below leave alone.
func (w *pageWalk) buffer(depth int) []byte {
	for len(w.buffers) <= depth {
		w.buffers = append(w.buffers, make([]byte, w.pageBytes))
	}
	return w.buffers[depth]
}

func (w *pageWalk) broken(id uint64, what string) error {
	return fmt.Errorf("%w: page %d of %d: %s", ErrCorrupt, id, w.pages, what)
}

// bounds are what the keys of a page lie between: low is the least that there may
// be, high is less than none. Either is nil where there is no bound.
type bounds struct{ low, high []byte }

// tree checks the page and everything beneath it.
func (w *pageWalk) tree(id uint64, depth int, within bounds) error {
	if id < 2 || id >= w.pages {
		return w.broken(id, "is not within the file")
	}
	if depth > boltDepthMax {
		return w.broken(id, "lies too deep")
	}
	page := w.buffer(depth)
	if err := w.read(id, page, 0); err != nil {
		return err
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
	if err := w.take(id, id+overflow); err != nil {
		return err
	}
	span := int64(overflow+1) * w.pageBytes
	table := boltHeaderBytes + int64(count)*boltElementBytes
	if table > span {
		return w.broken(id, "has a table longer than itself")
	}
	if table > int64(len(page)) {
		page = make([]byte, table)
		if err := w.read(id, page, 0); err != nil {
			return err
		}
	}
	p := walkedPage{id: id, depth: depth, leaf: flags == boltLeafFlag, span: span, content: page, table: table}
	return w.elements(&p, within)
}

// take marks pages as used.
func (w *pageWalk) take(first, last uint64) error {
	for id := first; id <= last; id++ {
		if w.seen[id/64]&(1<<(id%64)) != 0 {
			return w.broken(id, "is used twice")
		}
		w.seen[id/64] |= 1 << (id % 64)
	}
	return nil
}

// free checks the page that lists the free ones, once the tree has been walked.
func (w *pageWalk) free(id uint64) error {
	if id < 2 || id >= w.pages {
		return w.broken(id, "is not within the file")
	}
	head := w.buffer(0)
	if err := w.read(id, head, 0); err != nil {
		return err
	}
	count, at := uint64(binary.NativeEndian.Uint16(head[10:])), int64(boltHeaderBytes)
	overflow := uint64(binary.NativeEndian.Uint32(head[12:]))
	switch {
	case binary.NativeEndian.Uint64(head) != id:
		return w.broken(id, "says that it is another")
	case binary.NativeEndian.Uint16(head[8:]) != boltFreelistFlag:
		return w.broken(id, "does not list free pages")
	case overflow >= w.pages-id:
		return w.broken(id, "reaches beyond the file")
	}
	if count == boltCountMax {
		count, at = binary.NativeEndian.Uint64(head[boltHeaderBytes:]), at+8
	}
	if span := (overflow + 1) * uint64(w.pageBytes); count > (span-uint64(at))/8 {
		return w.broken(id, "has a table longer than itself")
	}
	if err := w.take(id, id+overflow); err != nil {
		return err
	}
	list := make([]byte, 8*count)
	if err := w.read(id, list, at); err != nil {
		return err
	}
	for ; len(list) > 0; list = list[8:] {
		page := binary.NativeEndian.Uint64(list)
		if page < 2 || page >= w.pages {
			return w.broken(id, "lists a page that is not within the file")
		}
		if err := w.take(page, page); err != nil {
			return err
		}
	}
	return nil
}

// walkedPage is a page that the walk is at.
type walkedPage struct {
	id      uint64
	depth   int
	leaf    bool
	span    int64  // bytes, with the pages that it reaches over
	content []byte // the first page, or more where the table is longer
	table   int64  // where the table ends
	within  bool   // it lies within an entry of the page with its id, and all of it is in content
}

// walkedElement is one entry of a page's table.
type walkedElement struct {
	key    []byte
	bucket bool
	value  int64 // where the value begins
	size   int64 // of the value
	child  uint64
}

// elements checks the entries of the page's table: that they lie within it, that
// their keys are in order, and what is beneath them.
func (w *pageWalk) elements(p *walkedPage, within bounds) error {
	var previous, element walkedElement
	for at := int64(boltHeaderBytes); at < p.table; at += boltElementBytes {
		var err error
		if element, err = w.element(p, at); err != nil {
			return err
		}
		switch {
		case within.high != nil && bytes.Compare(element.key, within.high) >= 0,
			at == boltHeaderBytes && bytes.Compare(element.key, within.low) < 0,
			at > boltHeaderBytes && bytes.Compare(element.key, previous.key) <= 0:
			return w.broken(p.id, "has keys that are not in order")
		}
		if at > boltHeaderBytes {
			if err := w.beneath(p, previous, bounds{low: previous.key, high: element.key}); err != nil {
				return err
			}
		}
		previous = element
	}
	if p.table == boltHeaderBytes {
		return nil
	}
	return w.beneath(p, previous, bounds{low: previous.key, high: within.high})
}

// element reads the entry of the page's table that lies at the offset.
func (w *pageWalk) element(p *walkedPage, at int64) (walkedElement, error) {
	raw := p.content[at : at+boltElementBytes]
	word := func(i int) int64 { return int64(binary.NativeEndian.Uint32(raw[4*i:])) }
	var e walkedElement
	var key, size int64
	if p.leaf {
		key, size = at+word(1), word(2)
		e.bucket = word(0)&boltBucketElement != 0
		e.value, e.size = key+size, word(3)
	} else {
		key, size = at+word(0), word(1)
		e.child = binary.NativeEndian.Uint64(raw[8:])
		e.value = key + size
	}
	if e.value+e.size > p.span {
		return e, w.broken(p.id, "has an entry beyond its end")
	}
	if key+size <= int64(len(p.content)) {
		e.key = p.content[key : key+size]
		return e, nil
	}
	e.key = make([]byte, size)
	return e, w.read(p.id, e.key, key)
}

// beneath checks what an entry points to.
func (w *pageWalk) beneath(p *walkedPage, e walkedElement, within bounds) error {
	switch {
	case !p.leaf:
		return w.tree(e.child, p.depth+1, within)
	case !e.bucket:
		return nil
	}
	// A bucket is the page of its root, or follows as a page of its own.
	var bucket [boltBucketBytes]byte
	switch {
	case p.within:
		return w.broken(p.id, "has a bucket within a bucket that lies within it")
	case e.size < boltBucketBytes:
		return w.broken(p.id, "has a bucket that is too short")
	}
	if err := w.read(p.id, bucket[:], e.value); err != nil {
		return err
	}
	if root := binary.NativeEndian.Uint64(bucket[:]); root != 0 {
		return w.tree(root, p.depth+1, bounds{})
	}
	return w.inline(p, e.value+boltBucketBytes, e.size-boltBucketBytes)
}

// inline checks a bucket that lies within a page, as a leaf of its own: bbolt makes those
// of small buckets only.
func (w *pageWalk) inline(p *walkedPage, at, size int64) error {
	if size < boltHeaderBytes || size > w.pageBytes {
		return w.broken(p.id, "has a bucket within it that is too short, or too long")
	}
	content := make([]byte, size)
	if err := w.read(p.id, content, at); err != nil {
		return err
	}
	table := boltHeaderBytes + int64(binary.NativeEndian.Uint16(content[10:]))*boltElementBytes
	if binary.NativeEndian.Uint16(content[8:]) != boltLeafFlag || table > size {
		return w.broken(p.id, "has a bucket within it that makes no sense")
	}
	return w.elements(&walkedPage{
		id: p.id, depth: p.depth + 1, leaf: true, span: size, content: content, table: table, within: true,
	}, bounds{})
}

// read reads bytes at an offset from the beginning of the page.
func (w *pageWalk) read(id uint64, b []byte, offset int64) error {
	if _, err := w.file.ReadAt(b, int64(id)*w.pageBytes+offset); err != nil {
		return fmt.Errorf("%w: page %d of %d: %w", ErrCorrupt, id, w.pages, err)
	}
	return nil
}
