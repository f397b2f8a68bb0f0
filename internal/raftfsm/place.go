package raftfsm

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/atmostonce/coordinator/internal/membership"
)

// place is a file, or a directory, where it was when it was opened.
type place struct {
	path string
	file os.FileInfo
}

// notePlaces notes what stays where it is as long as the group is open: the directories,
// and all files of the log that are no segments.
func (g *Group) notePlaces() error {
	log := filepath.Join(g.cfg.Dir, logName)
	paths := []string{g.cfg.Dir, log}
	entries, err := os.ReadDir(log)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), segmentSuffix) {
			paths = append(paths, filepath.Join(log, entry.Name()))
		}
	}
	for _, path := range paths {
		file, err := os.Lstat(path)
		if err != nil {
			return err
		}
		g.places = append(g.places, place{path, file})
	}
	return nil
}

// segmentSuffix is that of the log's segments.
const segmentSuffix = ".wal"

// CheckPlaces returns [membership.ErrGone] where a file that the group has open is not in
// its place any more: what is written to it then is lost with it, however well it is
// synced. Another error says that it cannot tell. It reads nothing, and waits as long as
// the disk hangs.
//
// The state file is another one after a state was received, and older segments of the log
// are deleted: of the former it asks that there is one, and of the latter only for the
// one that is written to.
func (g *Group) CheckPlaces() error {
	for _, p := range g.places {
		if err := membership.CheckSame(p.path, p.file); err != nil {
			return err
		}
	}
	if err := membership.CheckThere(filepath.Join(g.cfg.Dir, stateName)); err != nil {
		return err
	}
	for {
		tail := g.files.current()
		if tail.path == "" {
			return nil
		}
		if err := membership.CheckSame(tail.path, tail.file); err == nil || g.files.current().path == tail.path {
			return err
		}
	}
}
