package schema

import (
	"bytes"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"github.com/turnout-project/turnout/docs"
	"github.com/turnout-project/turnout/internal/recipe"
)

var update = flag.Bool("update", false, "write docs/recipe.schema.json anew")

// TestPublished: the schema in docs is that of the type and of recipe.md.
func TestPublished(t *testing.T) {
	got, err := Generate(docs.Recipe)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile("../../../docs/recipe.schema.json", got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(docs.RecipeSchema), string(got)); diff != "" {
		t.Errorf("docs/recipe.schema.json is stale; run `go test ./internal/recipe/schema -update` (-published +made):\n%s", diff)
	}
}

// TestDocumented: recipe.md says something of every field.
func TestDocumented(t *testing.T) {
	n := typeNode(reflect.TypeFor[recipe.Recipe]())
	described := descriptions(docs.Recipe, n)
	fields := 0
	n.walk("", func(path string, _ *node) {
		fields++
		name := path[strings.LastIndex(path, ".")+1:]
		if described[path] == "" && !bytes.Contains(docs.Recipe, []byte("`"+name+"`")) {
			t.Errorf("docs/recipe.md says nothing of %s", path)
		}
	})
	if fields < 60 {
		t.Errorf("only %d fields were found", fields)
	}
}

func compile(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(docs.RecipeSchema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("recipe.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("recipe.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// value reads YAML as what JSON would hold.
func value(t *testing.T, text []byte) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	v, err = jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestRecipes: what ships in recipes/ is valid.
func TestRecipes(t *testing.T) {
	s := compile(t)
	n := 0
	err := filepath.WalkDir("../../../recipes", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(p) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		n++
		if err := s.Validate(value(t, text)); err != nil {
			t.Errorf("%s: %v", p, err)
		}
		return nil
	})
	if err != nil || n < 5 {
		t.Fatalf("%d recipes, %v", n, err)
	}
}

func TestRefused(t *testing.T) {
	s := compile(t)
	const good = "extends: base.yaml\nname: x\n"
	if err := s.Validate(value(t, []byte(good))); err != nil {
		t.Errorf("%q: %v", good, err)
	}
	for name, text := range map[string]string{
		"unknown key":        good + "pakages: [a]\n",
		"wrong type":         good + "packages: a\n",
		"number for text":    good + "version: 1.10\n",
		"not among the few":  good + "boot: {verify: sometimes}\n",
		"duration":           good + "boot: {watchdog: 30}\n",
		"nested unknown key": good + "health: {checks: [{name: a, unti: b}]}\n",
		"item without name":  good + "users: [{uid: 1000}]\n",
		"number too high":    good + "users: [{name: a, uid: 60000}]\n",
		"nothing to extend":  "name: x\nversion: \"1\"\n",
	} {
		if err := s.Validate(value(t, []byte(text))); err == nil {
			t.Errorf("%s: %q is valid", name, text)
		}
	}
}
