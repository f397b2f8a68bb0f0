package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// TestNoTestSleepsOnRealTime holds the tests to signals: a sleep is too short on a
// slow machine and too long on a fast one. It is free in a synctest bubble, so a file
// that imports testing/synctest may; so may test/, whose processes give no signals.
// What is no test is held to the same by the linter.
func TestNoTestSleepsOnRealTime(t *testing.T) {
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata" || path == filepath.Join(root, "test")) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, imported := range file.Imports {
			if imported.Path.Value == `"testing/synctest"` {
				return nil
			}
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if call, ok := node.(*ast.SelectorExpr); ok && call.Sel.Name == "Sleep" {
				if from, ok := call.X.(*ast.Ident); ok && from.Name == "time" {
					t.Errorf("%s: time.Sleep outside a synctest bubble", files.Position(call.Pos()))
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
