package recipe

import (
	"encoding"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// decoder fills Go values from YAML nodes. Unlike yaml.v3's own it knows the
// file a node came from, refuses every key it does not know, and turns no
// value of one type into another: a version of 1.10 without quotes is a
// number to YAML, and is refused rather than read as 1.1.
type decoder struct {
	files  map[*yaml.Node]string
	places map[string]Place
}

func (d *decoder) place(n *yaml.Node) Place {
	return Place{File: d.files[n], Line: n.Line, Column: n.Column}
}

func (d *decoder) value(n *yaml.Node, v reflect.Value, field string) *Error {
	d.places[field] = d.place(n)
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return d.text(n, u, field)
	}
	switch v.Kind() {
	case reflect.String, reflect.Int, reflect.Bool:
		return d.scalar(n, v, field)
	case reflect.Slice:
		return d.list(n, v, field)
	case reflect.Map:
		return d.mapping(n, v, field)
	case reflect.Struct:
		return d.object(n, v, field)
	}
	panic(fmt.Sprintf("recipe: no way to decode a %s", v.Type()))
}

func (d *decoder) text(n *yaml.Node, u encoding.TextUnmarshaler, field string) *Error {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		return d.place(n).errorf("", "%s: want text, got %s", field, describe(n))
	}
	if err := u.UnmarshalText([]byte(n.Value)); err != nil {
		return d.place(n).errorf("", "%s: %v", field, err)
	}
	return nil
}

func (d *decoder) scalar(n *yaml.Node, v reflect.Value, field string) *Error {
	want := map[reflect.Kind]string{reflect.String: "text", reflect.Int: "a whole number", reflect.Bool: "true or false"}[v.Kind()]
	if n.Kind != yaml.ScalarNode {
		return d.place(n).errorf("", "%s: want %s, got %s", field, want, describe(n))
	}
	switch {
	case v.Kind() == reflect.String && n.Tag == "!!str":
		v.SetString(n.Value)
		return nil
	case v.Kind() == reflect.Int && n.Tag == "!!int":
		if i, err := strconv.Atoi(n.Value); err == nil {
			v.SetInt(int64(i))
			return nil
		}
	case v.Kind() == reflect.Bool && n.Tag == "!!bool":
		v.SetBool(strings.EqualFold(n.Value, "true"))
		return nil
	}
	hint := ""
	if v.Kind() == reflect.String && n.Value != "" {
		hint = fmt.Sprintf("put quotes around it: %q", n.Value)
	}
	return d.place(n).errorf(hint, "%s: want %s, got %s", field, want, describe(n))
}

func (d *decoder) list(n *yaml.Node, v reflect.Value, field string) *Error {
	if n.Kind != yaml.SequenceNode {
		hint := "start each item with \"- \""
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" {
			hint = fmt.Sprintf("write [%s]", strings.Join(strings.Fields(n.Value), ", "))
		}
		return d.place(n).errorf(hint, "%s: want a list, got %s", field, describe(n))
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		if err := d.value(item, v.Index(i), fmt.Sprintf("%s[%d]", field, i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) mapping(n *yaml.Node, v reflect.Value, field string) *Error {
	if n.Kind != yaml.MappingNode {
		return d.place(n).errorf("write \"key: value\" lines", "%s: want keys with values, got %s", field, describe(n))
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	for i := 0; i < len(n.Content); i += 2 {
		value := reflect.New(v.Type().Elem()).Elem()
		key := n.Content[i].Value
		if err := d.scalar(n.Content[i+1], value, field+"."+key); err != nil {
			return err
		}
		m.SetMapIndex(reflect.ValueOf(key), value)
		d.places[field+"."+key] = d.place(n.Content[i])
	}
	v.Set(m)
	return nil
}

func (d *decoder) object(n *yaml.Node, v reflect.Value, field string) *Error {
	if n.Kind != yaml.MappingNode {
		return d.place(n).errorf("write \"key: value\" lines", "%s: want keys with values, got %s", orRecipe(field), describe(n))
	}
	fields := fieldsOf(v.Type())
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i].Value
		index, ok := fields[key]
		if !ok {
			return d.unknown(n.Content[i], field, fields)
		}
		name := strings.TrimPrefix(field+"."+key, ".")
		if err := d.value(n.Content[i+1], v.Field(index), name); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) unknown(key *yaml.Node, field string, fields map[string]int) *Error {
	names := sortedKeys(fields)
	hint := "known keys: " + strings.Join(names, ", ")
	if near := Nearest(key.Value, names); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return d.place(key).errorf(hint, "unknown key %q in %s", key.Value, orRecipe(field))
}

func orRecipe(field string) string {
	if field == "" {
		return "recipe"
	}
	return field
}

// fieldsOf maps the keys of a struct to its fields: the yaml tag, or the json
// tag for types that are shared with the manifest.
func fieldsOf(t reflect.Type) map[string]int {
	m := map[string]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, ok := f.Tag.Lookup("yaml")
		if !ok {
			tag = f.Tag.Get("json")
		}
		name, _, _ := strings.Cut(tag, ",")
		if f.IsExported() && name != "-" && name != "" {
			m[name] = i
		}
	}
	return m
}

// describe says what a node is, in the words of a person who wrote it.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "keys with values"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.Tag {
	case "!!null":
		return "nothing"
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the truth value " + n.Value
	case "!!str":
		return fmt.Sprintf("the text %q", n.Value)
	case "!!timestamp":
		return "the date " + n.Value
	}
	return "a value of type " + n.Tag
}
