package disk

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file is in its place until something else is there, or nothing.
func TestPlace(t *testing.T) {
	for name, test := range map[string]struct {
		change func(path string) error
		gone   bool
	}{
		"untouched": {func(string) error { return nil }, false},
		"written to": {func(path string) error {
			return os.WriteFile(path, []byte("more"), 0o600)
		}, false},
		"deleted": {os.Remove, true},
		"replaced": {func(path string) error {
			return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
		}, true},
		"copied over a link": {func(path string) error {
			return errors.Join(os.Rename(path, path+".old"), os.Symlink(path+".old", path))
		}, true},
		"in a directory that was moved away": {func(path string) error {
			return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old")
		}, true},
		"in a directory that is a file now": {func(path string) error {
			dir := filepath.Dir(path)
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "data")
			path := filepath.Join(dir, "file")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			file, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			noted, err := Note(path)
			if err != nil {
				t.Fatal(err)
			}
			open, err := Of(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := test.change(path); err != nil {
				t.Fatal(err)
			}
			for _, at := range []Place{noted, open} {
				err := at.Check()
				if errors.Is(err, ErrGone) != test.gone || (err != nil) != test.gone || at.Path() != path {
					t.Errorf("%s: %v, want gone: %t", at.Path(), err, test.gone)
				}
				if err != nil && !strings.Contains(err.Error(), dir) {
					t.Errorf("%v does not name the directory", err)
				}
			}
		})
	}
}

// A path that leads to one file after the other is there as long as it leads to one.
func TestCheckThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := CheckThere(path); !errors.Is(err, ErrGone) {
		t.Errorf("before it is made: %v", err)
	}
	for range 2 {
		if err := os.WriteFile(path+".new", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Rename(path+".new", path), CheckThere(path)); err != nil {
			t.Error(err)
		}
	}
}

// A directory that cannot be synced is an error that names it.
func TestSyncDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := SyncDirectory(dir); err != nil {
		t.Error(err)
	}
	gone := filepath.Join(dir, "gone")
	if err := SyncDirectory(gone); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), gone) {
		t.Errorf("%v does not name %s", err, gone)
	}
}
