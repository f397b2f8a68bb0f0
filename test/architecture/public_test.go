package architecture

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// public are the packages that other modules build with.
var public = []string{"client", "middleware/httpadmit", "middleware/httpadmit/outgoing", "middleware/grpcadmit", "middleware/grpcadmit/outgoing"}

// parsed returns the files of a public package, and those of its tests.
func parsed(t *testing.T, name string) (files *token.FileSet, sources, tests []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(name), "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %v, %v", name, paths, err)
	}
	files = token.NewFileSet()
	for _, path := range paths {
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "_test.go") {
			tests = append(tests, file)
		} else {
			sources = append(sources, file)
		}
	}
	return files, sources, tests
}

// Every exported name of a public package says what it is: packages, functions, methods, types,
// constants, variables, and the fields and methods of exported types.
func TestEveryExportedNameIsDocumented(t *testing.T) {
	for _, name := range public {
		files, sources, _ := parsed(t, name)
		documented, names := false, 0
		need := func(at token.Pos, what string, comments ...*ast.CommentGroup) {
			names++
			for _, comment := range comments {
				if strings.TrimSpace(comment.Text()) != "" {
					return
				}
			}
			t.Errorf("%s: %s has no doc comment", files.Position(at), what)
		}
		for _, file := range sources {
			documented = documented || strings.HasPrefix(file.Doc.Text(), "Package "+file.Name.Name+" ")
			for _, declaration := range file.Decls {
				switch d := declaration.(type) {
				case *ast.FuncDecl:
					if d.Name.IsExported() && (d.Recv == nil || receiverIsExported(d)) {
						need(d.Pos(), d.Name.Name, d.Doc)
					}
				case *ast.GenDecl:
					for _, spec := range d.Specs {
						switch s := spec.(type) {
						case *ast.TypeSpec:
							if s.Name.IsExported() {
								need(s.Pos(), s.Name.Name, s.Doc, d.Doc)
								for _, field := range fieldsOf(s) {
									for _, name := range field.Names {
										if name.IsExported() {
											need(field.Pos(), s.Name.Name+"."+name.Name, field.Doc, field.Comment)
										}
									}
								}
							}
						case *ast.ValueSpec:
							for _, name := range s.Names {
								if name.IsExported() {
									group := d.Doc
									if d.Lparen.IsValid() {
										group = nil // a comment on all of them names none
									}
									need(s.Pos(), name.Name, s.Doc, s.Comment, group)
								}
							}
						}
					}
				}
			}
		}
		if !documented {
			t.Errorf("%s has no package comment", name)
		}
		if names < 3 {
			t.Errorf("%s: only %d exported names were found", name, names)
		}
	}
}

func receiverIsExported(d *ast.FuncDecl) bool {
	of := d.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	name, ok := of.(*ast.Ident)
	return ok && name.IsExported()
}

func fieldsOf(s *ast.TypeSpec) []*ast.Field {
	switch kind := s.Type.(type) {
	case *ast.StructType:
		return kind.Fields.List
	case *ast.InterfaceType:
		return kind.Methods.List
	}
	return nil
}

// Every exported function and method of a public package stands in an Example: who looks for
// one sees it used. So does every option. Each package has an Example that shows the whole.
func TestEveryConceptHasAnExample(t *testing.T) {
	// Not shown, and why.
	exempt := map[string]string{
		"Error": "errors are printed, not called", "Unwrap": "errors.Is and errors.As call it", "Is": "errors.Is calls it",
		"GRPCStatus": "package status calls it", "String": "fmt calls it", "RoundTrip": "http.Client calls it",
		"CloseIdleConnections": "http.Client calls it", "WithClock": "for tests in virtual time",
	}
	for _, name := range public {
		files, sources, tests := parsed(t, name)
		shown := map[string]bool{}
		for _, example := range doc.Examples(tests...) {
			if example.Output == "" && !example.EmptyOutput {
				t.Errorf("%s: Example%s is not run: it has no output", name, example.Name)
			}
		}
		for _, file := range tests {
			for _, declaration := range file.Decls {
				function, ok := declaration.(*ast.FuncDecl)
				if !ok || !strings.HasPrefix(function.Name.Name, "Example") {
					continue
				}
				ast.Inspect(function, func(node ast.Node) bool {
					if selector, ok := node.(*ast.SelectorExpr); ok {
						shown[selector.Sel.Name] = true
					}
					return true
				})
			}
		}
		for _, file := range sources {
			for _, declaration := range file.Decls {
				d, ok := declaration.(*ast.FuncDecl)
				if !ok || !d.Name.IsExported() || d.Recv != nil && !receiverIsExported(d) || shown[d.Name.Name] || exempt[d.Name.Name] != "" {
					continue
				}
				t.Errorf("%s: %s stands in no Example", files.Position(d.Pos()), d.Name.Name)
			}
		}
	}
}

// Every option of a middleware stands in its package comment and in its page, and none is named
// there that does not exist.
func TestOptionsOfTheMiddlewareAreAtAGlance(t *testing.T) {
	option := regexp.MustCompile(`\bWith[A-Z]\w+`)
	for name, page := range map[string]string{"middleware/httpadmit": "http.md", "middleware/grpcadmit": "grpc.md"} {
		_, sources, _ := parsed(t, name)
		_, others, _ := parsed(t, "client")
		exists, comment := map[string]bool{}, ""
		for _, file := range sources {
			comment += file.Doc.Text()
			for _, declaration := range file.Decls {
				if d, ok := declaration.(*ast.FuncDecl); ok && d.Recv == nil && option.MatchString(d.Name.Name) {
					exists[d.Name.Name] = true
				}
			}
		}
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for where, content := range map[string]string{"its package comment": comment, page: string(text)} {
			named := map[string]bool{}
			for _, name := range option.FindAllString(content, -1) {
				named[name] = true
			}
			for name := range exists {
				if !named[name] {
					t.Errorf("%s: %s does not name it", name, where)
				}
			}
			for _, file := range others { // pages and comments name the client's options too
				for _, declaration := range file.Decls {
					if d, ok := declaration.(*ast.FuncDecl); ok {
						delete(named, d.Name.Name)
					}
				}
			}
			for name := range named {
				if !exists[name] && strings.HasPrefix(name, "With") {
					t.Errorf("%s names %s, which does not exist", where, name)
				}
			}
		}
	}
}

// Who builds with a public package links none of the server, nor what that is made of.
func TestWhatPublicPackagesLink(t *testing.T) {
	for _, name := range public {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", module+name).Output()
		if err != nil {
			t.Fatal(err)
		}
		for dependency := range strings.FieldsSeq(string(out)) {
			for _, banned := range []string{
				module + "internal", module + "cmd", "github.com/hashicorp", "go.etcd.io", "github.com/prometheus", "testing",
			} {
				if !slices.Contains(unbanned, dependency) && (dependency == banned || strings.HasPrefix(dependency, banned+"/")) {
					t.Errorf("%s links %s", name, dependency)
				}
			}
		}
	}
}
