package server

import (
	"encoding"
	"reflect"
	"strings"
	"time"
)

// schemas collects JSON Schemas (2020-12, as OpenAPI 3.1 uses) of Go types,
// by type name.
type schemas map[string]any

func ref(name string) object { return object{"$ref": "#/components/schemas/" + name} }

var (
	timeType = reflect.TypeFor[time.Time]()
	textType = reflect.TypeFor[encoding.TextMarshaler]()
)

// of returns the schema of a type as encoding/json writes it.
func (sc schemas) of(t reflect.Type) object {
	switch {
	case t == timeType:
		return object{"type": "string", "format": "date-time"}
	case t.Implements(textType) && t.Kind() != reflect.Pointer:
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return sc.of(t.Elem())
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": sc.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": sc.of(t.Elem())}
	case reflect.Struct:
		return sc.structure(t)
	case reflect.Interface:
		return object{}
	case reflect.Float32, reflect.Float64:
		return object{"type": "number"}
	}
	if t == reflect.TypeFor[time.Duration]() {
		return object{"type": "integer", "description": "nanoseconds"}
	}
	return object{"type": "integer"}
}

func (sc schemas) structure(t reflect.Type) object {
	if _, known := sc[t.Name()]; !known {
		sc[t.Name()] = object{} // for types that hold themselves
		props, required := object{}, []string{}
		sc.fields(t, props, &required)
		s := object{"type": "object", "properties": props}
		if len(required) > 0 {
			s["required"] = required
		}
		sc[t.Name()] = s
	}
	return ref(t.Name())
}

func (sc schemas) fields(t reflect.Type, props object, required *[]string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			sc.fields(f.Type, props, required)
			continue
		case name == "-" || !f.IsExported():
			continue
		case name == "":
			name = f.Name
		}
		props[name] = sc.of(f.Type)
		if !strings.Contains(opts, "omit") {
			*required = append(*required, name)
		}
	}
}
