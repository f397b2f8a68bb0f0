package store

import (
	"errors"
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/atmostonce/coordinator/internal/disk"
)

// Install replaces the state by a copy that has arrived in the file at path, which
// must lie in the state file's file system and is used up. It is called by the one
// that updates.
//
// The copy is checked first, all of it: its checksum, whose it is, its pages, every
// record and every response, and what they come to together. Where it is refused,
// the error names it and the state is what it was. Then it is marked as installed,
// synced, and renamed over the state file; whatever was gathered belongs to the old
// state and is dropped with it. An error from then on fails the store.
func (s *Store) Install(path string) error {
	if err := takeTrailer(path); err != nil {
		return fileError(path, err)
	}
	f, err := openFile(path, s.config.fileOptions())
	if err != nil {
		return fileError(path, err)
	}
	h, x, err := s.survey(f, true)
	if err == nil {
		h.installedAt = h.applied.Index
		err = f.mark(&h)
	}
	if err != nil {
		return fileError(path, errors.Join(err, f.close()))
	}
	replaced, err := s.replace(f, h, x)
	if err != nil {
		return errors.Join(s.checked(err), f.close())
	}
	s.config.Logger.Info("installed another node's state", "path", s.config.Path,
		"index", h.applied.Index, "term", h.applied.Term, "records", x.records)
	s.retire(replaced)
	return nil
}

// mark writes the head, and makes all of the file durable.
func (f *file) mark(h *head) error {
	err := f.update(func(tx *bolt.Tx) error {
		return tx.Bucket(metaBucket).Put(headKey, h.encode())
	})
	if err != nil {
		return err
	}
	return f.handle.Sync()
}

// replace puts the new file in the place of the present one, which it returns. No
// commit is under way meanwhile, and nobody reads.
func (s *Store) replace(f *file, h head, x *index) (*file, error) {
	s.commit.Lock()
	defer s.commit.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	if err := os.Rename(f.path, s.config.Path); err != nil {
		return nil, fileError(f.path, err)
	}
	if err := disk.SyncDirectory(filepath.Dir(s.config.Path)); err != nil {
		return nil, &faultError{cause: err} // which of the two is there after a crash is open
	}
	f.path = s.config.Path
	replaced := s.file
	s.adopt(f, h, x)
	s.updates++
	s.saved = s.updates
	s.settled.Broadcast()
	s.retired.Add(1)
	return replaced, nil
}

// retire closes the file once the last long read of it has ended.
func (s *Store) retire(f *file) {
	go func() {
		defer s.retired.Done()
		if err := f.close(); err != nil {
			s.config.Logger.Warn("closing the state file that was replaced", "path", f.path, "error", err)
		}
	}()
}
