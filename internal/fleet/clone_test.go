package fleet

import (
	"reflect"
	"testing"
	"time"
)

// fill sets everything in v, so that a field that is added later is copied
// too or found out.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k)
		fill(e)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64:
		v.SetUint(1)
	}
}

// shared finds memory that both values reach.
func shared(a, b reflect.Value, path string) string {
	switch a.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if a.IsNil() {
			return path + " was not filled"
		}
		if a.Pointer() == b.Pointer() {
			return path
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		return shared(a.Elem(), b.Elem(), path)
	case reflect.Slice:
		return shared(a.Index(0), b.Index(0), path+"[]")
	case reflect.Map:
		k := a.MapKeys()[0]
		return shared(a.MapIndex(k), b.MapIndex(k), path+"{}")
	case reflect.Struct:
		if a.Type() == reflect.TypeFor[time.Time]() {
			return ""
		}
		for i := range a.NumField() {
			if s := shared(a.Field(i), b.Field(i), path+"."+a.Type().Field(i).Name); s != "" {
				return s
			}
		}
	}
	return ""
}

func TestClonesShareNothing(t *testing.T) {
	n, r := &Node{}, &Rollout{}
	fill(reflect.ValueOf(n).Elem())
	fill(reflect.ValueOf(r).Elem())
	for what, pair := range map[string][2]any{"node": {n, n.Clone()}, "rollout": {r, r.Clone()}} {
		if s := shared(reflect.ValueOf(pair[0]), reflect.ValueOf(pair[1]), what); s != "" {
			t.Errorf("a clone shares %s", s)
		}
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("the clone of the %s differs:\n%+v\n%+v", what, pair[0], pair[1])
		}
	}
	if (*Node)(nil).Clone() != nil || (*Report)(nil).Clone() != nil || (*Rollout)(nil).Clone() != nil {
		t.Error("a clone of nothing is something")
	}
}
