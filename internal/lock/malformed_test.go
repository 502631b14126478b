package lock

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

// optional fields may be missing or empty.
var optional = map[string]bool{"source": true, "sourceVersion": true, "essential": true, "build": true, "tools": true, "accounts": true}

// mutations calls try with JSON texts that each differ from v in one value.
func mutations(t *testing.T, root any, try func(what string, text []byte)) {
	encode := func(what string) {
		b, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		try(what, b)
	}
	wrong := []any{"", "x y", "../../etc", -1.0, 1.5, true, []any{}, map[string]any{"a": 1.0}, strings.Repeat("~ ", 200), "\u0000", "é", "sha256:12"}
	var walk func(path string, get func() any, set func(any))
	walk = func(path string, get func() any, set func(any)) {
		old := get()
		for _, w := range wrong {
			if fmt.Sprintf("%T", w) == fmt.Sprintf("%T", old) || old != nil {
				set(w)
				encode(fmt.Sprintf("%s is %.20q", path, fmt.Sprint(w)))
			}
		}
		set(old)
		switch v := old.(type) {
		case map[string]any:
			v["noSuchField"] = 1.0
			encode(path + " has a field too many")
			delete(v, "noSuchField")
			for k, inner := range v {
				if !optional[k] {
					delete(v, k)
					encode(path + "." + k + " is missing")
					v[k] = inner
				}
				walk(path+"."+k, func() any { return v[k] }, func(x any) { v[k] = x })
			}
		case []any:
			for i := range v {
				walk(fmt.Sprintf("%s[%d]", path, i), func() any { return v[i] }, func(x any) { v[i] = x })
			}
			if len(v) > 1 {
				set([]any{v[1], v[0]})
				encode(path + " is in another order")
				set([]any{v[0], v[0]})
				encode(path + " has an entry twice")
				set(old)
			}
		}
	}
	walk("lock", func() any { return root }, func(x any) { root = x })
}

// free are values that nothing can be wrong with, by the last name of a path.
func free(what string) bool {
	for _, f := range []string{"essential", "source", "sourceVersion", "build", "tools", "date"} {
		if strings.Contains(what, "."+f+" is ") {
			return true // an empty or another value of these may be right
		}
	}
	return false
}

// Hundreds of locks that are wrong in one value: each is refused, on one line,
// and none makes a panic.
func TestMalformed(t *testing.T) {
	good, err := Encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	var root any
	if err := json.Unmarshal(good, &root); err != nil {
		t.Fatal(err)
	}
	n := 0
	mutations(t, root, func(what string, text []byte) {
		n++
		f, err := Decode(text)
		switch {
		case err == nil && !free(what):
			t.Errorf("%s: accepted as %+v", what, f)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: the error is of several lines: %v", what, err)
		}
	})
	for i := range good {
		if i%7 != 0 || i >= len(good)-1 {
			continue
		}
		n++
		if _, err := Decode(good[:i]); err == nil {
			t.Errorf("the first %d bytes of a lock are accepted", i)
		}
	}
	if n < 300 {
		t.Errorf("%d malformed locks, want hundreds", n)
	}
}
