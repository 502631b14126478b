package image

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/rootfs"
)

// fill gives every list of structures in v one, and every pointer something
// to point to, so that all their fields can be changed.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i))
			}
		}
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem())
	case reflect.Slice:
		if v.Len() == 0 && v.Type().Elem().Kind() == reflect.Struct {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		}
		for i := range v.Len() {
			fill(v.Index(i))
		}
	}
}

// fields calls visit with every field of v that holds a value, by its path:
// "Kernel.ExcludeModules", "Files.0.Mode".
func fields(v reflect.Value, path string, visit func(path string, v reflect.Value)) {
	switch {
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if f.IsExported() && f.Tag.Get("yaml") != "-" {
				fields(v.Field(i), strings.TrimPrefix(path+"."+f.Name, "."), visit)
			}
		}
	case v.Kind() == reflect.Pointer:
		fields(v.Elem(), path, visit)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		fields(v.Index(0), path+".0", visit)
	default:
		visit(path, v)
	}
}

// mutate changes a value to another.
func mutate(t *testing.T, path string, v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(v.String() + "x")
	case reflect.Bool:
		v.SetBool(!v.Bool())
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(v.Int() + 1)
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		v.SetUint(v.Uint() + 1)
	case reflect.Float64:
		v.SetFloat(v.Float() + 1)
	case reflect.Slice:
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
	case reflect.Map:
		m := reflect.MakeMap(v.Type())
		key := reflect.New(v.Type().Key()).Elem()
		mutate(t, path, key)
		m.SetMapIndex(key, reflect.Zero(v.Type().Elem()))
		v.Set(m)
	default:
		t.Fatalf("%s: a field of kind %v; teach the test to change it", path, v.Kind())
	}
}

// TestMutations changes every field of a recipe, one at a time, and what a
// lock says, and wants the right results in the store to be used no more:
// those that the field has a part in, and only those.
func TestMutations(t *testing.T) {
	dir := t.TempDir()
	agent := filepath.Join(dir, "agent")
	write(t, agent, "agent")
	write(t, filepath.Join(dir, "motd"), "hello")
	write(t, filepath.Join(dir, "motdx"), "hello, too")
	type digests struct {
		root, base string
		facts      facts
	}
	fresh := func() (*recipe.Recipe, *lock.File) {
		r := testRecipe()
		r.Path = filepath.Join(dir, "r.yaml")
		r.Files = []recipe.File{{Path: "/etc/motd", Source: "motd"}}
		fill(reflect.ValueOf(r).Elem())
		return r, &lock.File{Kernel: "linux-image-1", SourceDateEpoch: 7, Packages: []lock.Package{{Name: "kmod", Version: "1", SHA256: "1"}}}
	}
	compute := func(r *recipe.Recipe, f *lock.File) digests {
		in, err := digestInputs(r, f, agent, []byte("trust"))
		if err != nil {
			t.Fatal(err)
		}
		spec := rootfs.Spec{Packages: f.Packages, Recipe: r, SourceDateEpoch: f.SourceDateEpoch}
		base, err := spec.BaseDigest()
		if err != nil {
			t.Fatal(err)
		}
		facts, err := rootFacts(in.rr, f, "4.5.1", in.agent, []byte("trust"))
		if err != nil {
			t.Fatal(err)
		}
		return digests{in.root, base, facts}
	}
	first := compute(fresh())

	// What has no part in the root: only UKIs have the first two; the others
	// say how the recipe came about, and what that gave is in other fields.
	noRoot := []string{"Kernel.Cmdline", "Labels", "Extends", "Remove"}
	inBase := []string{"Kernel.ExcludeModules"}
	check := func(path, top string, got digests, root, base bool) {
		t.Helper()
		if changed := got.root != first.root; changed != root {
			t.Errorf("%s changed: another root: %v; want %v", path, changed, root)
		}
		if changed := got.base != first.base; changed != base {
			t.Errorf("%s changed: packages are configured anew: %v; want %v", path, changed, base)
		}
		why := got.facts.changed(first.facts, nil)
		if root && !slices.Equal(why, []string{top}) || !root && len(why) > 0 {
			t.Errorf("%s changed: the reason given is %q; want %q", path, why, top)
		}
	}
	var paths []string
	r, _ := fresh()
	fields(reflect.ValueOf(r).Elem(), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
	if len(paths) < 60 {
		t.Fatalf("only %d fields: %q", len(paths), paths)
	}
	for _, path := range paths {
		r, f := fresh()
		fields(reflect.ValueOf(r).Elem(), "", func(p string, v reflect.Value) {
			if p == path {
				mutate(t, path, v)
			}
		})
		name, _, _ := strings.Cut(path, ".")
		field, _ := reflect.TypeFor[recipe.Recipe]().FieldByName(name)
		top := field.Tag.Get("yaml")
		if slices.Contains(inBase, path) {
			top = factModules
		}
		check(path, top, compute(r, f), !slices.Contains(noRoot, path), slices.Contains(inBase, path))
	}
	for _, tt := range []struct {
		name, top  string
		change     func(f *lock.File)
		root, base bool
	}{
		{"version of a package", factPackages, func(f *lock.File) { f.Packages[0].Version = "2" }, true, true},
		{"bytes of a package", factPackages, func(f *lock.File) { f.Packages[0].SHA256 = "2" }, true, true},
		{"a package more", factPackages, func(f *lock.File) { f.Packages = append(f.Packages, lock.Package{Name: "less"}) }, true, true},
		{"date", factEpoch, func(f *lock.File) { f.SourceDateEpoch++ }, true, true},
		{"compiler of the driver", factBuild, func(f *lock.File) { f.Build = []lock.Package{{Name: "gcc"}} }, true, false},
		{"loader", "", func(f *lock.File) { f.Tools = []lock.Package{{Name: "systemd-boot-efi", Version: "2"}} }, false, false},
	} {
		r, f := fresh()
		tt.change(f)
		check(tt.name, tt.top, compute(r, f), tt.root, tt.base)
	}
}
