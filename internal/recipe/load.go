package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// maxSize and maxExtends bound what a recipe can make the parser do.
const (
	maxSize    = 1 << 20
	maxExtends = 16
)

// Load reads the recipe at path with everything it extends, fills in the
// defaults, validates it and computes its digests. A fault in a recipe is a
// *Error; other errors are about reading files.
func Load(path string) (*Recipe, error) {
	l := loader{files: map[*yaml.Node]string{}}
	root, err := l.merged(path)
	if err != nil {
		return nil, err
	}
	r := &Recipe{Path: path, places: map[string]Place{}}
	d := decoder{files: l.files, places: r.places}
	if err := d.value(root, reflect.ValueOf(r).Elem(), ""); err != nil {
		return nil, err
	}
	r.defaults()
	if err := r.validate(); err != nil {
		return nil, err
	}
	if err := r.relocate(); err != nil {
		return nil, err
	}
	return r, r.digest()
}

// loader reads a chain of recipes and remembers which file each node is from.
type loader struct {
	files map[*yaml.Node]string
	chain []string // absolute paths, to find cycles
}

// merged returns the mapping of the recipe at path, laid over what it extends.
func (l *loader) merged(path string) (*yaml.Node, error) {
	b, err := read(path)
	if err != nil {
		return nil, err
	}
	top, err := l.parse(path, b)
	if err != nil {
		return nil, err
	}
	if err := l.enter(path); err != nil {
		return nil, err
	}
	ext := lookup(top, "extends")
	if ext == nil {
		return top, l.merge(nil, top)
	}
	if ext.Kind != yaml.ScalarNode || ext.Tag != "!!str" || ext.Value == "" {
		return nil, l.place(ext).errorf("", "extends: want the path of a recipe, got %s", describe(ext))
	}
	base, err := l.merged(filepath.Join(filepath.Dir(path), ext.Value))
	if err != nil {
		var e *Error
		if errors.As(err, &e) {
			return nil, err
		}
		return nil, l.place(ext).errorf("the path is relative to this recipe's folder", "extends %s: %v", ext.Value, err)
	}
	return base, l.merge(base, top)
}

// enter refuses a recipe that is already being read.
func (l *loader) enter(path string) error {
	abs, err := filepath.EvalSymlinks(path)
	if err == nil {
		abs, err = filepath.Abs(abs)
	}
	if err != nil {
		return err
	}
	if slices.Contains(l.chain, abs) {
		return &Error{File: path, Line: 1, Msg: "recipe extends itself: " + strings.Join(append(l.chain, abs), " → ")}
	}
	if len(l.chain) == maxExtends {
		return &Error{File: path, Line: 1, Msg: fmt.Sprintf("more than %d recipes extend one another", maxExtends)}
	}
	l.chain = append(l.chain, abs)
	return nil
}

func read(path string) ([]byte, error) {
	st, err := os.Stat(path) // first: opening a pipe would wait
	if err == nil && !st.Mode().IsRegular() {
		return nil, fmt.Errorf("recipe %s: not a regular file", path)
	}
	var f *os.File
	if err == nil {
		f, err = os.Open(path)
	}
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("recipe %s: %w", path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err != nil {
		return nil, fmt.Errorf("recipe %s: %w", path, err)
	}
	if len(b) > maxSize {
		return nil, &Error{File: path, Msg: fmt.Sprintf("recipe is larger than %d bytes", maxSize), Hint: "put large files beside it and name them with files[].source"}
	}
	return b, nil
}

// parse returns the top mapping of one YAML document without anchors, merge
// keys and duplicate keys.
func (l *loader) parse(path string, b []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(b))
	var doc, more yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, &Error{File: path, Line: 1, Msg: "recipe is empty"}
	case err != nil:
		return nil, syntaxError(path, err)
	}
	if err := dec.Decode(&more); err == nil {
		return nil, &Error{File: path, Line: more.Line, Column: more.Column, Msg: "a second YAML document", Hint: "a recipe is one document; use extends to share"}
	} else if !errors.Is(err, io.EOF) {
		return nil, syntaxError(path, err)
	}
	top := doc.Content[0]
	if err := l.check(path, top); err != nil {
		return nil, err
	}
	if top.Kind != yaml.MappingNode {
		return nil, l.place(top).errorf("start with \"name: …\"", "want keys with values, got %s", describe(top))
	}
	return top, nil
}

// check registers n and all below it, and refuses what the decoder must not meet.
func (l *loader) check(path string, n *yaml.Node) error {
	l.files[n] = path
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return l.place(n).errorf("use extends to share", "anchors and aliases are not supported")
	}
	if n.Kind == yaml.MappingNode {
		seen := map[string]int{}
		for i := 0; i < len(n.Content); i += 2 {
			k := n.Content[i]
			l.files[k] = path
			if k.Kind != yaml.ScalarNode || k.Tag != "!!str" {
				return l.place(k).errorf("", "want a word as a key, got %s", describe(k))
			}
			if line, dup := seen[k.Value]; dup {
				return l.place(k).errorf("", "key %q was given already on line %d", k.Value, line)
			}
			seen[k.Value] = k.Line
		}
	}
	for _, c := range n.Content {
		if err := l.check(path, c); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) place(n *yaml.Node) Place {
	return Place{File: l.files[n], Line: n.Line, Column: n.Column}
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(?s:(.*))$`)

// syntaxError puts the line that yaml.v3 names where people look for it.
func syntaxError(path string, err error) *Error {
	e := &Error{File: path, Line: 1, Msg: err.Error()}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		e.Msg = "not YAML: " + m[2]
		if n, err := strconv.Atoi(m[1]); err == nil {
			e.Line = n
		}
	}
	return e
}

// lookup returns the value of key in a mapping, or nil.
func lookup(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
