package process

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEditsApplyOrFail: an edit that is not of what is there builds nothing.
func TestEditsApplyOrFail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file.go")
	if err := os.WriteFile(path, []byte("a b a c"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, old, path, want string
	}{
		{"once", "b", path, "a X a c"},
		{"twice", "a", path, ""},
		{"never", "d", path, ""},
		{"a new file", "", path + ".new", "X"},
		{"a new file that is there", "", path, ""},
		{"a file that is not there", "b", path + ".new", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Edit{File: "file.go", Old: c.old, New: "X"}.apply(c.path)
			if got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	content, err := os.ReadFile(path)
	if err != nil || string(content) != "a b a c" {
		t.Errorf("the file itself has become %q, %v", content, err)
	}
}
