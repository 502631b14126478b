package client_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/client"
)

const module = "github.com/turnout-project/turnout"

// Each type that a method takes or returns has a name here: an internal one
// cannot be written down elsewhere.
func TestEveryTypeHasAName(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "client.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok {
			named[s.Name.Name] = true
		}
		return true
	})
	var need func(method string, x reflect.Type)
	need = func(method string, x reflect.Type) {
		switch x.Kind() {
		case reflect.Pointer, reflect.Slice:
			if x.Name() == "" {
				need(method, x.Elem())
				return
			}
		case reflect.Func:
			for i := range x.NumIn() {
				need(method, x.In(i))
			}
			return
		}
		if strings.HasPrefix(x.PkgPath(), module) && !named[x.Name()] {
			t.Errorf("method %s: type %s has no name in this package", method, x)
		}
	}
	c := reflect.TypeFor[*client.Client]()
	if c.NumMethod() < 30 {
		t.Fatalf("the client has %d methods", c.NumMethod())
	}
	for i := range c.NumMethod() {
		m := c.Method(i)
		for k := range m.Type.NumIn() {
			need(m.Name, m.Type.In(k))
		}
		for k := range m.Type.NumOut() {
			need(m.Name, m.Type.Out(k))
		}
	}
}

// Another module can import the package, and needs nothing that this one has
// not already.
func TestFromAnotherModule(t *testing.T) {
	top, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	example, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	sum, err := os.ReadFile(filepath.Join(top, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	program := strings.NewReplacer("package client_test", "package main", "func Example()", "func main()").Replace(string(example))
	mod, err := os.ReadFile(filepath.Join(top, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version := ""
	for line := range strings.Lines(string(mod)) {
		if v, ok := strings.CutPrefix(line, "go "); ok {
			version = strings.TrimSpace(v)
		}
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"main.go": program, "go.sum": string(sum),
		"go.mod": "module example.org/other\n\ngo " + version + "\n\nrequire " + module + " v0.0.0\n\nreplace " + module + " => " + top + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-mod=mod", "-o", os.DevNull, ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOPROXY=off", "GOFLAGS=-trimpath", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("a program of another module does not build: %v\n%s", err, out)
	}
}
