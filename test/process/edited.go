package process

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Edit is a change of one source file for a build of its own. The file itself stays as it
// is.
type Edit struct {
	// File is relative to the module, or begins with "std/" and is one of the standard
	// library.
	File string
	// Old is replaced by New, and must be there exactly once. An empty Old stands for a
	// file that is not there yet, which New is.
	Old, New string
}

// BuildEdited builds cmd/coordinator with some edits into a directory, and returns the
// program. An edit that does not apply is an error.
func BuildEdited(dir, name string, edits ...Edit) (string, error) {
	arguments := []string{"build"}
	if raceDetector {
		arguments = append(arguments, "-race")
	}
	return goEdited(dir, name, edits, module+"cmd/coordinator", arguments...)
}

// BuildEditedTest builds the tests of a package of the module, such as "test/simulation",
// with some edits into a directory, and returns the program. They run without the race
// detector. An edit that does not apply is an error.
func BuildEditedTest(dir, name, tests string, edits ...Edit) (string, error) {
	return goEdited(dir, name, edits, module+tests, "test", "-c")
}

// goEdited builds a package of edited sources.
func goEdited(dir, name string, edits []Edit, what string, arguments ...string) (string, error) {
	overlay, err := overlayOf(filepath.Join(dir, name+"-edited"), edits)
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, name)
	_, err = goCommand(append(arguments, "-overlay", overlay, "-o", program, what)...)
	return program, err
}

// overlayOf writes edited copies and the file that tells the go command of them.
func overlayOf(sources string, edits []Edit) (string, error) {
	root, err := goCommand("list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	std, err := goCommand("env", "GOROOT")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(sources, 0o700); err != nil {
		return "", err
	}
	replaced := make(map[string]string)
	for i, edit := range edits {
		path := filepath.Join(root, edit.File)
		if file, ok := strings.CutPrefix(edit.File, "std/"); ok {
			path = filepath.Join(std, "src", file)
		}
		before := path
		if replaced[path] != "" {
			before = replaced[path] // edited once already
		}
		edited, err := edit.apply(before)
		if err != nil {
			return "", err
		}
		copied := filepath.Join(sources, fmt.Sprintf("%d-%s", i, filepath.Base(path)))
		if err := os.WriteFile(copied, []byte(edited), 0o600); err != nil {
			return "", err
		}
		replaced[path] = copied
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", err
	}
	file := filepath.Join(sources, "overlay.json")
	return file, os.WriteFile(file, overlay, 0o600)
}

// apply returns the edited content of a file.
func (e Edit) apply(path string) (string, error) {
	content, err := os.ReadFile(path)
	switch {
	case e.Old == "" && os.IsNotExist(err):
		return e.New, nil
	case e.Old == "":
		return "", fmt.Errorf("edit of %s: it is there already", e.File)
	case err != nil:
		return "", fmt.Errorf("edit: %w", err)
	}
	if found := strings.Count(string(content), e.Old); found != 1 {
		return "", fmt.Errorf("edit of %s: %q is there %d times, not once", e.File, e.Old, found)
	}
	return strings.Replace(string(content), e.Old, e.New, 1), nil
}

func goCommand(arguments ...string) (string, error) {
	command := exec.CommandContext(context.Background(), "go", arguments...)
	var failed strings.Builder
	command.Stderr = &failed
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", strings.Join(arguments, " "), err, failed.String())
	}
	return strings.TrimSpace(string(out)), nil
}
