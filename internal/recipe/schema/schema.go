// Package schema makes the JSON Schema of recipes (draft 2020-12), for the
// completion of editors: the fields from the type that recipes are decoded
// into, what they mean from docs/recipe.md. The checks of package recipe stay
// the ones that count; a schema cannot say all of them.
package schema

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/turnout-project/turnout/internal/recipe"
)

// node is one schema.
type node struct {
	Schema      string           `json:"$schema,omitempty"`
	ID          string           `json:"$id,omitempty"`
	Title       string           `json:"title,omitempty"`
	Description string           `json:"description,omitempty"`
	Type        string           `json:"type,omitempty"`
	Enum        []string         `json:"enum,omitempty"`
	Pattern     string           `json:"pattern,omitempty"`
	Minimum     *int             `json:"minimum,omitempty"`
	Maximum     *int             `json:"maximum,omitempty"`
	Properties  map[string]*node `json:"properties,omitempty"`
	Items       *node            `json:"items,omitempty"`
	Required    []string         `json:"required,omitempty"`
	Additional  any              `json:"additionalProperties,omitempty"` // false, or the schema of a map's values
	If          *node            `json:"if,omitempty"`
	Then        *node            `json:"then,omitempty"`
	Not         *node            `json:"not,omitempty"`
}

// Generate returns the schema; doc is docs/recipe.md. Fields that doc does
// not describe in a table have no description.
func Generate(doc []byte) ([]byte, error) {
	n := typeNode(reflect.TypeFor[recipe.Recipe]())
	n.Schema = "https://json-schema.org/draft/2020-12/schema"
	n.Title = "Turnout recipe"
	n.If = &node{Not: &node{Required: []string{"extends"}}}
	n.Then = &node{Required: []string{"name", "version", "base", "kernel"}}
	for path, c := range constraints {
		to := n.find(path)
		if to == nil {
			return nil, fmt.Errorf("schema: a rule is for %q, which recipes do not have", path)
		}
		c(to)
	}
	for path, text := range descriptions(doc, n) {
		to := n.find(path)
		if to == nil {
			return nil, fmt.Errorf("schema: recipe.md describes %q, which recipes do not have", path)
		}
		to.Description = text
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	err := e.Encode(n)
	return out.Bytes(), err
}

const durationPattern = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// typeNode returns the schema of a type, by the rules of the recipe decoder.
func typeNode(t reflect.Type) *node {
	if reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return &node{Type: "string", Pattern: durationPattern} // the only such type
	}
	switch t.Kind() {
	case reflect.Int:
		return &node{Type: "integer"}
	case reflect.Bool:
		return &node{Type: "boolean"}
	case reflect.Slice:
		return &node{Type: "array", Items: typeNode(t.Elem())}
	case reflect.Map:
		return &node{Type: "object", Additional: typeNode(t.Elem())}
	case reflect.Struct:
		n := &node{Type: "object", Properties: map[string]*node{}, Additional: false}
		for i := range t.NumField() {
			f := t.Field(i)
			tag, ok := f.Tag.Lookup("yaml")
			if !ok {
				tag = f.Tag.Get("json")
			}
			name, _, _ := strings.Cut(tag, ",")
			if f.IsExported() && name != "" && name != "-" {
				n.Properties[name] = typeNode(f.Type)
			}
		}
		return n
	}
	return &node{Type: "string"}
}

// find returns the schema of a field: "health.checks[].class"; nil if there
// is none.
func (n *node) find(path string) *node {
	for part := range strings.SplitSeq(path, ".") {
		name, item := strings.CutSuffix(part, "[]")
		if n = n.Properties[name]; n == nil {
			return nil
		}
		if item {
			if n = n.Items; n == nil {
				return nil
			}
		}
	}
	return n
}

// walk visits every field below n.
func (n *node) walk(path string, fn func(path string, n *node)) {
	for name, p := range n.Properties {
		at := strings.TrimPrefix(path+"."+name, ".")
		fn(at, p)
		if p.Items != nil {
			p.Items.walk(at+"[]", fn)
		}
		p.walk(at, fn)
	}
}
