package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files is what is known of a directory's files over all lives of the processes that use
// it: every change, and every sync. It is made of their traces.
type Files struct {
	root   string // of which everything is known, and which a power cut does not touch
	tree   *inode
	inodes []*inode
	names  []nameChange
	places int    // in the traces so far
	steps  []step // in order
}

// step is a call that counts here.
type step struct {
	place int
	at    int64 // in µs since 1970
}

// inode is one file or directory.
type inode struct {
	number   int
	dir      bool
	changes  []change // of a file
	syncs    []syncing
	children map[string]*inode // of a directory, as the processes see it now
	size     int64             // of a file, likewise
}

// change is one change of a file's content.
type change struct {
	entry, exit int
	at          int64  // of the data, or the new size
	data        []byte // nil: the size changes
}

// syncing is one sync of a file or directory.
type syncing struct {
	entry, exit int
	kind        string // of file, by the name under which it was opened
}

// nameChange is one change of directories: child appears in dir under name, or vanishes
// from there, or both.
type nameChange struct {
	entry, exit int
	child       *inode
	from        *inode // it vanishes from there; nil: it does not
	fromName    string
	to          *inode // it appears there; nil: it does not
	toName      string
}

// NewFiles returns a directory in which nothing has been changed yet. What is in it
// counts as having been there for long.
func NewFiles(root string) (*Files, error) {
	f := &Files{root: filepath.Clean(root)}
	f.tree = f.newInode(true)
	err := filepath.WalkDir(f.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == f.root {
			return err
		}
		dir, name, err := f.locate(path)
		if err != nil {
			return err
		}
		child := f.newInode(entry.IsDir())
		dir.children[name] = child
		f.names = append(f.names, nameChange{entry: -1, exit: -1, child: child, to: dir, toName: name})
		dir.syncs = append(dir.syncs, syncing{})
		if entry.IsDir() {
			return nil
		}
		content, err := os.ReadFile(path)
		child.size = int64(len(content))
		child.changes = append(child.changes, change{entry: -1, exit: -1, data: content})
		child.syncs = append(child.syncs, syncing{})
		return err
	})
	f.places = 1
	return f, err
}

func (f *Files) newInode(dir bool) *inode {
	n := &inode{number: len(f.inodes), dir: dir}
	if dir {
		n.children = make(map[string]*inode)
	}
	f.inodes = append(f.inodes, n)
	return n
}

// errElsewhere says that a path is not within the directory.
var errElsewhere = errors.New("not within the directory")

// locate returns the directory in which a path lies, and its name there.
func (f *Files) locate(path string) (*inode, string, error) {
	inside, ok := strings.CutPrefix(path, f.root+string(filepath.Separator))
	if !ok {
		return nil, "", errElsewhere
	}
	dir := f.tree
	names := strings.Split(inside, string(filepath.Separator))
	for _, name := range names[:len(names)-1] {
		next := dir.children[name]
		if next == nil || !next.dir {
			return nil, "", fmt.Errorf("%s: there is no directory %s", path, name)
		}
		dir = next
	}
	return dir, names[len(names)-1], nil
}

// opened is what a file descriptor stands for.
type opened struct {
	*inode
	kind     string
	position int64
	durably  bool // every write is followed by a sync before it returns
}

// life is one process that changes the files.
type life struct {
	*Files
	descriptors map[int64]*opened
}

// Add adds what one process did, by its trace, which has ended.
func (f *Files) Add(tracePath string) error {
	input, err := os.Open(tracePath)
	if err != nil {
		return err
	}
	defer input.Close() //nolint:errcheck // it was only read
	calls, places, err := Read(input, f.places)
	if err != nil {
		return fmt.Errorf("%s: %w", tracePath, err)
	}
	l := life{Files: f, descriptors: make(map[int64]*opened)}
	// A descriptor is free as soon as close is called, and taken once open has returned.
	order := make([]*Call, 0, len(calls))
	for i := range calls {
		order = append(order, &calls[i])
	}
	slices.SortStableFunc(order, func(a, b *Call) int { return cmp.Compare(a.effective(), b.effective()) })
	for _, c := range order {
		counts, err := l.apply(c)
		if err != nil {
			return fmt.Errorf("%s: place %d: %w", tracePath, c.Entry, err)
		}
		if counts {
			f.steps = append(f.steps, step{place: c.Entry, at: c.At})
		}
	}
	slices.SortFunc(f.steps, func(a, b step) int { return cmp.Compare(a.place, b.place) })
	f.places += places
	if err := f.settle(); err != nil {
		return fmt.Errorf("%s: %w", tracePath, err)
	}
	return nil
}

// effective is where a call is taken up: what gives out a descriptor or a name when it
// has returned, the rest when it is made.
func (c *Call) effective() int {
	if c.Name == "openat" || c.Name == "open" {
		return c.Exit
	}
	return c.Entry
}

// apply adds one call, and reports whether it is about these files.
func (l *life) apply(c *Call) (counts bool, err error) {
	switch c.Name {
	case "openat":
		return l.open(c)
	case "close":
		fd, err := c.number(0)
		delete(l.descriptors, fd)
		return false, err
	case "mkdirat":
		return l.mkdir(c)
	case "renameat":
		return l.rename(c)
	case "unlinkat":
		return l.unlink(c)
	case "write", "pwrite64":
		return l.write(c)
	case "ftruncate", "fallocate":
		return l.resize(c)
	case "fsync", "fdatasync":
		return l.sync(c)
	case "mmap":
		if len(c.Arguments) == 6 && (!strings.Contains(c.Arguments[3], "MAP_SHARED") || !strings.Contains(c.Arguments[2], "PROT_WRITE")) {
			return false, nil
		}
	}
	return false, l.unknown(c)
}

// unknown refuses a call that the model does not know, if it is about these files.
func (l *life) unknown(c *Call) error {
	for i := range c.Arguments {
		if fd, err := c.number(i); err == nil && l.descriptors[fd] != nil && (i == 0 || c.Name != "writev") {
			return fmt.Errorf("%s of a %s: the model does not know that call", c.Name, l.descriptors[fd].kind)
		}
		if raw, err := c.bytes(i); err == nil && strings.HasPrefix(string(raw), l.root) && !c.Failed {
			return fmt.Errorf("%s of %s: the model does not know that call", c.Name, raw)
		}
	}
	return nil
}

func (l *life) open(c *Call) (bool, error) {
	raw, err := c.bytes(1)
	if err != nil || !strings.HasPrefix(string(raw), l.root) {
		return false, err
	}
	path, err := c.path(1)
	if err != nil {
		return false, err
	}
	flags := c.Arguments[2]
	creates := strings.Contains(flags, "O_CREAT")
	dir, name, err := l.locate(path)
	if errors.Is(err, errElsewhere) { // the root itself
		if !c.Failed && c.Exit != never {
			l.descriptors[c.Result] = &opened{inode: l.tree, kind: kindOf(l.root, path)}
		}
		return false, nil
	}
	if err != nil || c.Failed || c.Exit == never && !creates {
		return false, onlyIf(!c.Failed, err)
	}
	file := dir.children[name]
	counts := false
	if file == nil {
		if !creates {
			return false, fmt.Errorf("open of %s, which is not known", path)
		}
		file = l.newInode(false)
		l.change(nameChange{entry: c.Entry, exit: c.Exit, child: file, to: dir, toName: name})
		counts = true
	}
	if strings.Contains(flags, "O_TRUNC") && file.size > 0 {
		file.changes = append(file.changes, change{entry: c.Entry, exit: c.Exit})
		file.size = 0
		counts = true
	}
	if strings.Contains(flags, "O_APPEND") {
		return false, fmt.Errorf("%s is open for appending, which the model does not know", path)
	}
	if c.Exit != never {
		l.descriptors[c.Result] = &opened{inode: file, kind: kindOf(l.root, path), durably: strings.Contains(flags, "O_DSYNC")}
	}
	return counts, nil
}

func onlyIf(condition bool, err error) error {
	if condition {
		return err
	}
	return nil
}

// change changes the tree as the processes see it.
func (f *Files) change(c nameChange) {
	f.names = append(f.names, c)
	if c.from != nil {
		delete(c.from.children, c.fromName)
	}
	if c.to != nil {
		c.to.children[c.toName] = c.child
	}
}

func (l *life) mkdir(c *Call) (bool, error) {
	path, err := c.path(1)
	if err != nil || c.Failed {
		return false, onlyIf(!c.Failed, err)
	}
	dir, name, err := l.locate(path)
	if errors.Is(err, errElsewhere) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if dir.children[name] != nil {
		return false, fmt.Errorf("mkdir of %s, which is there", path)
	}
	l.change(nameChange{entry: c.Entry, exit: c.Exit, child: l.newInode(true), to: dir, toName: name})
	return true, nil
}

func (l *life) rename(c *Call) (bool, error) {
	from, err := c.path(1)
	if err != nil || c.Failed {
		return false, onlyIf(!c.Failed, err)
	}
	to, err := c.path(3)
	if err != nil {
		return false, err
	}
	source, sourceName, err := l.locate(from)
	if errors.Is(err, errElsewhere) {
		return false, nil
	}
	target, targetName, err2 := l.locate(to)
	if err := errors.Join(err, err2); err != nil {
		return false, err
	}
	child := source.children[sourceName]
	if child == nil {
		return false, fmt.Errorf("rename of %s, which is not known", from)
	}
	l.change(nameChange{
		entry: c.Entry, exit: c.Exit, child: child,
		from: source, fromName: sourceName, to: target, toName: targetName,
	})
	return true, nil
}

func (l *life) unlink(c *Call) (bool, error) {
	path, err := c.path(1)
	if err != nil || c.Failed {
		return false, onlyIf(!c.Failed, err)
	}
	dir, name, err := l.locate(path)
	if errors.Is(err, errElsewhere) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	child := dir.children[name]
	if child == nil {
		return false, fmt.Errorf("unlink of %s, which is not known", path)
	}
	l.change(nameChange{entry: c.Entry, exit: c.Exit, child: child, from: dir, fromName: name})
	return true, nil
}

func (l *life) write(c *Call) (bool, error) {
	fd, err := c.number(0)
	if err != nil || l.descriptors[fd] == nil || c.Failed {
		return false, err
	}
	file := l.descriptors[fd]
	data, err := c.bytes(1)
	if err != nil {
		return false, err
	}
	at := file.position
	if c.Name == "pwrite64" {
		if at, err = c.number(3); err != nil {
			return false, err
		}
	}
	if c.Exit != never {
		data = data[:c.Result]
	}
	if c.Name == "write" {
		file.position += int64(len(data))
	}
	file.changes = append(file.changes, change{entry: c.Entry, exit: c.Exit, at: at, data: data})
	file.size = max(file.size, at+int64(len(data)))
	if file.durably && c.Exit != never { // it covers the write itself, too
		file.syncs = append(file.syncs, syncing{entry: c.Exit + 1, exit: c.Exit, kind: file.kind})
	}
	return true, nil
}

func (l *life) resize(c *Call) (bool, error) {
	fd, err := c.number(0)
	if err != nil || l.descriptors[fd] == nil || c.Failed {
		return false, err
	}
	file := l.descriptors[fd]
	size, err := c.number(1)
	if err == nil && c.Name == "fallocate" {
		if size != 0 { // a mode
			return false, fmt.Errorf("fallocate with mode %d: the model does not know that", size)
		}
		offset, err1 := c.number(2)
		length, err2 := c.number(3)
		size, err = max(file.size, offset+length), errors.Join(err1, err2)
	}
	if err != nil || size == file.size {
		return false, err
	}
	file.changes = append(file.changes, change{entry: c.Entry, exit: c.Exit, at: size})
	file.size = size
	return true, nil
}

func (l *life) sync(c *Call) (bool, error) {
	fd, err := c.number(0)
	if err != nil || l.descriptors[fd] == nil || c.Failed {
		return false, err
	}
	file := l.descriptors[fd]
	file.syncs = append(file.syncs, syncing{entry: c.Entry, exit: c.Exit, kind: file.kind})
	return true, nil
}

// settle makes sure of what calls have done that did not return because their process
// was killed, and that everything is as the model says: it compares all files with what
// the disk has, as long as no process uses them.
func (f *Files) settle() error {
	for i := range f.names {
		if f.names[i].exit == never {
			return errors.New("the process was killed within a change of a directory")
		}
	}
	var known []string
	if err := f.walk(f.tree, f.root, func(path string, n *inode) error {
		known = append(known, path)
		if n.dir {
			return nil
		}
		found, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for i := range n.changes {
			c := &n.changes[i]
			if c.exit != never {
				continue
			}
			// The process is gone, so whatever became of it has become of it by now.
			c.exit = f.places - 1
			if c.data == nil {
				c.at = int64(len(found))
				continue
			}
			here := min(int64(len(found)), c.at+int64(len(c.data)))
			c.data = slices.Clone(found[min(c.at, here):here])
		}
		n.size = int64(len(found))
		if content := n.content(func(change) kept { return all }, nil); !bytes.Equal(content, found) {
			return fmt.Errorf("%s is not what the trace makes of it: %s", path, n.difference(content, found))
		}
		return nil
	}); err != nil {
		return err
	}
	var found []string
	err := filepath.WalkDir(f.root, func(path string, _ fs.DirEntry, err error) error {
		if path != f.root {
			found = append(found, path)
		}
		return err
	})
	slices.Sort(known)
	slices.Sort(found)
	if err == nil && !slices.Equal(known, found) {
		return fmt.Errorf("the trace makes of the directory %q, and it has %q", known, found)
	}
	return err
}

// difference says where a file is not as the model has it, and what was to be there.
func (n *inode) difference(model, found []byte) string {
	if len(model) != len(found) {
		return fmt.Sprintf("it has %d bytes, not %d", len(found), len(model))
	}
	at := 0
	for at < len(model) && model[at] == found[at] {
		at++
	}
	text := fmt.Sprintf("it differs from byte %d on, where were", at)
	for _, c := range n.changes {
		if c.at <= int64(at) && int64(at) < c.at+int64(len(c.data)) {
			text += fmt.Sprintf(" %d-%d(%d at %d)", c.entry, c.exit, len(c.data), c.at)
		}
	}
	return text
}

// walk visits everything beneath a directory as the processes see it.
func (f *Files) walk(dir *inode, path string, visit func(path string, n *inode) error) error {
	for _, name := range slices.Sorted(maps.Keys(dir.children)) {
		child := dir.children[name]
		if err := visit(filepath.Join(path, name), child); err != nil {
			return err
		}
		if child.dir {
			if err := f.walk(child, filepath.Join(path, name), visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// kindOf names the kind of a file or directory by its path, with neither numbers nor
// what is drawn at random in it.
func kindOf(root, path string) string {
	name := filepath.Base(path)
	inside, _ := filepath.Rel(root, path)
	depth := strings.Count(inside, string(filepath.Separator)) + 1
	switch parent := filepath.Base(filepath.Dir(path)); {
	case inside == ".":
		return "the directory above the data directory"
	case depth == 1:
		return "the data directory"
	case name == "shards":
		return "shards/"
	case parent == "shards":
		return "shards/N/"
	case name == "log", name == "snapshots":
		return name + "/"
	case strings.HasSuffix(name, ".wal"):
		return "log/*.wal"
	case strings.HasPrefix(name, "incoming-"):
		return "snapshots/incoming-*"
	case strings.Contains(name, ".copy-"):
		return "state.db.copy-*"
	case parent == "log":
		return "log/" + name
	}
	return name
}
