package disk

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// sectorBytes is what a disk writes as a whole or not at all.
const sectorBytes = 512

// Mode is what becomes of what was not synced when the power failed.
type Mode int

// The modes.
const (
	// DropAll: nothing of it is there.
	DropAll Mode = iota
	// KeepAll: all of it is there, which is also what kill -9 leaves.
	KeepAll
	// InOrder: it is there up to some moment, and the last write in part.
	InOrder
	// AnyOrder: each change is there or not by itself, each write perhaps in part; the
	// names in directories up to some moment, as a journal keeps them.
	AnyOrder
	// AnyNames: as AnyOrder, and each name by itself, too.
	AnyNames
	modes
)

// String names the mode.
func (m Mode) String() string {
	return [...]string{"everything unsynced dropped", "everything unsynced kept", "unsynced kept in order",
		"unsynced kept in any order", "unsynced and names kept in any order"}[m]
}

// kept is how much of a change is there.
type kept int

const (
	none kept = iota
	part      // some sectors of it
	all
)

// Cut is a power failure.
type Cut struct {
	Place  int // everything that was called before it may have happened
	Mode   Mode
	Random *rand.Rand
	// Unsynced: syncs of files of that kind are taken for never made. "": none.
	Unsynced string

	until int // for InOrder and AnyOrder
}

// Rebuild makes the directory anew in another place, as the power failure may have left
// it. The place must be empty.
func (f *Files) Rebuild(into string, cut Cut) error {
	// In order: from the last sync on, which is not far, to the failure.
	cut.until = cut.Place - cut.Random.IntN(min(cut.Place+1, 400))
	durable := make(map[*inode]int)
	for _, n := range f.inodes {
		durable[n] = cut.durableUntil(n)
	}
	type entries map[string]*inode
	tree := make(map[*inode]entries)
	of := func(dir *inode) entries {
		if tree[dir] == nil {
			tree[dir] = make(entries)
		}
		return tree[dir]
	}
	for _, c := range f.names {
		if c.entry >= cut.Place || !cut.keepsName(&c, durable) {
			continue
		}
		if c.from != nil && of(c.from)[c.fromName] == c.child {
			delete(of(c.from), c.fromName)
		}
		if c.to != nil {
			of(c.to)[c.toName] = c.child
		}
	}
	var write func(dir *inode, path string) error
	write = func(dir *inode, path string) error {
		names := make([]string, 0, len(tree[dir]))
		for name := range tree[dir] {
			names = append(names, name)
		}
		slices.Sort(names) // so that a seed gives the same again
		for _, name := range names {
			child, path := tree[dir][name], filepath.Join(path, name)
			if child.dir {
				if err := os.Mkdir(path, 0o700); err != nil {
					return err
				}
				if err := write(child, path); err != nil {
					return err
				}
				continue
			}
			if err := writeSparse(path, child.content(cut.keeps(durable[child]), cut.Random)); err != nil {
				return err
			}
		}
		return nil
	}
	return write(f.tree, into)
}

// durableUntil returns the place before which everything that had returned is durable in a
// file or directory: where the latest sync began that had returned.
func (cut *Cut) durableUntil(n *inode) int {
	until := -2
	for _, s := range n.syncs {
		if s.exit < cut.Place && (cut.Unsynced == "" || s.kind != cut.Unsynced) {
			until = max(until, s.entry)
		}
	}
	return until
}

// keepsName decides whether a change of a directory is there. A name that moves from one
// directory to another is a change of both; a file system does it in one step.
func (cut *Cut) keepsName(c *nameChange, durable map[*inode]int) bool {
	if c.to != nil && c.exit < durable[c.to] || c.to == nil && c.exit < durable[c.from] {
		return true
	}
	switch cut.Mode {
	case DropAll:
		return false
	case KeepAll:
		return true
	case InOrder, AnyOrder:
		return c.entry < cut.until
	default:
		return cut.Random.IntN(2) == 0
	}
}

// keeps returns what decides about the changes of a file.
func (cut *Cut) keeps(durable int) func(change) kept {
	return func(c change) kept {
		switch {
		case c.entry >= cut.Place:
			return none
		case c.exit < durable:
			return all
		}
		switch cut.Mode {
		case DropAll:
			return none
		case KeepAll:
			if c.exit >= cut.Place {
				return kept(cut.Random.IntN(int(all) + 1))
			}
			return all
		case InOrder:
			switch {
			case c.exit < cut.until:
				return all
			case c.entry < cut.until:
				return part
			}
			return none
		default:
			if c.data == nil { // a length is a journal's matter
				return kept(cut.Random.IntN(2)) * all
			}
			return kept(cut.Random.IntN(int(all) + 1))
		}
	}
}

// content returns what a file holds if so much of each change is there.
func (n *inode) content(keeps func(change) kept, random *rand.Rand) []byte {
	var content []byte
	resize := func(size int64) {
		if size <= int64(cap(content)) {
			was := len(content)
			content = content[:size]
			if was < len(content) {
				clear(content[was:])
			}
			return
		}
		content = append(make([]byte, 0, size), content...)[:size]
	}
	for _, c := range n.changes {
		much := keeps(c)
		switch {
		case much == none:
		case c.data == nil:
			resize(c.at)
		case much == all:
			if end := c.at + int64(len(c.data)); end > int64(len(content)) {
				resize(end)
			}
			copy(content[c.at:], c.data)
		default:
			sectors(c, random, func(from, to int64) {
				if to > int64(len(content)) {
					resize(to)
				}
				copy(content[from:to], c.data[from-c.at:to-c.at])
			})
		}
	}
	return content
}

// sectors keeps some sectors of a write: the first ones, the last ones, or any.
func sectors(c change, random *rand.Rand, keep func(from, to int64)) {
	end := c.at + int64(len(c.data))
	count := (end-1)/sectorBytes - c.at/sectorBytes + 1
	how, bound := random.IntN(3), random.Int64N(count+1)
	for i := range count {
		if how == 0 && i >= bound || how == 1 && i < bound || how == 2 && random.IntN(2) == 0 {
			continue
		}
		sector := (c.at/sectorBytes + i) * sectorBytes
		keep(max(c.at, sector), min(end, sector+sectorBytes))
	}
}

// writeSparse writes a file without the zeros.
func writeSparse(path string, content []byte) (err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	var zeros [16 << 10]byte
	for at := 0; at < len(content) && err == nil; at += len(zeros) {
		piece := content[at:min(len(content), at+len(zeros))]
		if !bytes.Equal(piece, zeros[:len(piece)]) {
			_, err = file.WriteAt(piece, int64(at))
		}
	}
	if err == nil {
		err = file.Truncate(int64(len(content)))
	}
	if closing := file.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("rebuild %s: %w", path, err)
	}
	return nil
}

// Kinds returns the kinds of files and directories that were synced, in order.
func (f *Files) Kinds() []string {
	kinds := make(map[string]bool)
	for _, n := range f.inodes {
		for _, s := range n.syncs {
			if s.kind != "" {
				kinds[s.kind] = true
			}
		}
	}
	var sorted []string
	for kind := range kinds {
		sorted = append(sorted, kind)
	}
	slices.Sort(sorted)
	return sorted
}

// Steps returns the places right before each call that counts, in order, and one
// behind the last.
func (f *Files) Steps() []int {
	places := make([]int, 0, len(f.steps)+1)
	for _, s := range f.steps {
		places = append(places, s.place)
	}
	return append(places, f.places)
}

// Time returns when a place was, in µs since 1970: no earlier than anything before it, no
// later than what was called there. Behind the last call it is for ever.
func (f *Files) Time(place int) int64 {
	i, _ := slices.BinarySearchFunc(f.steps, place, func(s step, place int) int { return cmp.Compare(s.place, place) })
	if i == len(f.steps) {
		return math.MaxInt64
	}
	return f.steps[i].at
}

// Place returns the first place that was no earlier than a time.
func (f *Files) Place(at int64) int {
	i, _ := slices.BinarySearchFunc(f.steps, at, func(s step, at int64) int { return cmp.Compare(s.at, at) })
	if i == len(f.steps) {
		return f.places
	}
	return f.steps[i].place
}
