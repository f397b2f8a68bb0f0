package raftfsm

import (
	"os"
	"path/filepath"

	"github.com/atmostonce/coordinator/internal/disk"
	"github.com/atmostonce/coordinator/internal/raftlog"
)

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
		if !raftlog.IsSegment(entry.Name()) {
			paths = append(paths, filepath.Join(log, entry.Name()))
		}
	}
	for _, path := range paths {
		at, err := disk.Note(path)
		if err != nil {
			return err
		}
		g.places = append(g.places, at)
	}
	return nil
}

// CheckPlaces returns [disk.ErrGone] where a file that the group has open is not in
// its place any more: what is written to it then is lost with it, however well it is
// synced. Another error says that it cannot tell. It reads nothing, and waits as long as
// the disk hangs.
//
// The state file is another one after a state was received, and older segments of the log
// are deleted: of the former it asks that there is one, and of the latter only for the
// one that is written to.
func (g *Group) CheckPlaces() error {
	for _, p := range g.places {
		if err := p.Check(); err != nil {
			return err
		}
	}
	if err := disk.CheckThere(filepath.Join(g.cfg.Dir, stateName)); err != nil {
		return err
	}
	for {
		tail := g.log.tail()
		if tail.Path() == "" {
			return nil
		}
		if err := tail.Check(); err == nil || g.log.tail().Path() == tail.Path() {
			return err
		}
	}
}
