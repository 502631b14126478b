package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// MaxLabels is how many labels a node may have.
const MaxLabels = 64

var (
	labelKey   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$`)
	labelValue = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?$`)
)

// CheckLabel reports a label that is none: a key of letters, digits and
// . _ / -, a value of letters, digits and . _ -, each at most 63 long and
// with a letter or a digit at both ends. A value may be empty.
func CheckLabel(key, value string) error {
	switch {
	case !labelKey.MatchString(key):
		return fmt.Errorf("label %q: want a key of letters, digits, and . _ / - between them, at most 63", key)
	case !labelValue.MatchString(value):
		return fmt.Errorf("label %s=%q: want a value of letters, digits, and . _ - between them, at most 63", key, value)
	}
	return nil
}

// ParseLabels reads "key=value" words: "gpu=h100", "zone=" (an empty value).
// Of none it returns nil.
func ParseLabels(words []string) (map[string]string, error) {
	if len(words) == 0 {
		return nil, nil
	}
	out := map[string]string{}
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok {
			return nil, fmt.Errorf("label %q: want KEY=VALUE", w)
		}
		if err := CheckLabel(key, value); err != nil {
			return nil, err
		}
		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("label %q is given twice", key)
		}
		out[key] = value
	}
	return out, nil
}

// LabelText writes labels in order, "gpu=h100,zone=a".
func LabelText(labels map[string]string) string {
	words := make([]string, 0, len(labels))
	for k, v := range labels {
		words = append(words, k+"="+v)
	}
	slices.Sort(words)
	return strings.Join(words, ",")
}

// Selector picks nodes by their labels. Make one with ParseSelector; the
// zero value picks all.
type Selector struct{ terms []term }

type term struct {
	key, value string
	hasValue   bool // else only whether the key is there counts
	not        bool
}

// ParseSelector reads terms with commas between, of which all must hold:
// "gpu=h100" (the label has the value), "zone!=b" (it has not, or is not
// there), "canary" (it is there), "!canary" (it is not).
func ParseSelector(s string) (Selector, error) {
	var out Selector
	for _, w := range strings.Split(s, ",") {
		w = strings.TrimSpace(w)
		t := term{}
		switch i := strings.Index(w, "="); {
		case i > 0:
			t.key, t.value, t.hasValue = strings.TrimSuffix(w[:i], "!"), strings.TrimPrefix(w[i+1:], "="), true
			t.not = w[i-1] == '!'
		default:
			t.key, t.not = strings.CutPrefix(w, "!")
		}
		if err := CheckLabel(t.key, t.value); err != nil {
			return Selector{}, fmt.Errorf("selector %q: %w; terms are KEY=VALUE, KEY!=VALUE, KEY and !KEY, with commas between", s, err)
		}
		out.terms = append(out.terms, t)
	}
	return out, nil
}

// Matches reports whether labels have all that is asked for.
func (s Selector) Matches(labels map[string]string) bool {
	for _, t := range s.terms {
		v, there := labels[t.key]
		if (there && (!t.hasValue || v == t.value)) == t.not {
			return false
		}
	}
	return true
}

// String writes what ParseSelector reads; "" for the selector of all.
func (s Selector) String() string {
	words := make([]string, len(s.terms))
	for i, t := range s.terms {
		switch {
		case t.hasValue && t.not:
			words[i] = t.key + "!=" + t.value
		case t.hasValue:
			words[i] = t.key + "=" + t.value
		case t.not:
			words[i] = "!" + t.key
		default:
			words[i] = t.key
		}
	}
	return strings.Join(words, ",")
}
