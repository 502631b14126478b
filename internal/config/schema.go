package config

import (
	"encoding"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Schema returns the JSON Schema (draft 2020-12) of the file, for the
// completion of editors. What keys mean is taken from the comments of the
// file that `pxeserver init` writes. check is what counts: a schema cannot
// say all of it.
func Schema() ([]byte, error) {
	c := Default()
	text, err := Write(&c)
	if err != nil {
		return nil, err
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	s := schemaOf(reflect.TypeFor[Config]())
	s["$schema"], s["title"] = "https://json-schema.org/draft/2020-12/schema", "Configuration of pxeserver"
	describe(s, doc.Content[0])
	b, err := json.MarshalIndent(s, "", " ")
	return append(b, '\n'), err
}

type object = map[string]any

const durationPattern = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`

// choices are the values of keys that have few.
var choices = map[string][]string{"dhcp.mode": {"server", "proxy", "off"}, "dhcp.profiles.profile": {"plain", "direct", "boot-server", "header"}, "attestation.baseline": {"off", "warn", "enforce"}}

// schemaOf returns the schema of a type, by the rules of the YAML reader.
func schemaOf(t reflect.Type) object {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return object{"type": "string", "pattern": durationPattern}
	case reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return object{"type": []string{"string", "integer"}}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Slice:
		return object{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		props := object{}
		for i := range t.NumField() {
			if key, _, _ := strings.Cut(t.Field(i).Tag.Get("yaml"), ","); key != "" && key != "-" {
				props[key] = schemaOf(t.Field(i).Type)
			}
		}
		return object{"type": "object", "properties": props, "additionalProperties": false}
	}
	return object{"type": "integer"}
}

// describe puts the comments of a mapping's keys into the schema, and the
// choices of keys that have few.
func describe(s object, m *yaml.Node) { describeIn(s, m, "") }

func describeIn(s object, m *yaml.Node, at string) {
	props, ok := s["properties"].(object)
	if !ok || m.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		p, ok := props[key.Value].(object)
		if !ok {
			continue
		}
		path := strings.TrimPrefix(at+"."+key.Value, ".")
		if text := comment(key.HeadComment, value.LineComment, key.LineComment); text != "" {
			p["description"] = text
		}
		if c := choices[path]; c != nil {
			p["enum"] = slices.Clone(c)
		}
		describeIn(p, value, path)
	}
}

var commentMark = regexp.MustCompile(`(?m)^# ?`)

// comment joins comments to one text. Of those above a key only the last
// paragraph is about it.
func comment(above string, beside ...string) string {
	paragraphs := strings.Split(strings.TrimSpace(above), "\n\n")
	parts := []string{paragraphs[len(paragraphs)-1]}
	parts = append(parts, beside...)
	return strings.Join(strings.Fields(commentMark.ReplaceAllString(strings.Join(parts, "\n"), "")), " ")
}
