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
	root, err := goCommand("list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return "", err
	}
	std, err := goCommand("env", "GOROOT")
	if err != nil {
		return "", err
	}
	sources := filepath.Join(dir, name+"-edited")
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
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return "", err
	}
	program := filepath.Join(dir, name)
	arguments := []string{"build", "-overlay", file, "-o", program}
	if raceDetector {
		arguments = append(arguments, "-race")
	}
	_, err = goCommand(append(arguments, module+"cmd/coordinator")...)
	return program, err
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
