package recipe

import (
	"fmt"
	"strings"
)

// Error is a fault in a recipe, at the place a person has to change. Programs
// that see one (errors.As) exit with status 2.
type Error struct {
	File   string // path as it was given, or as the extending recipe names it
	Line   int    // from 1; 0 when the fault has no place in the file
	Column int    // from 1, in characters
	Msg    string
	Hint   string // what to do about it; "" when Msg says it all
}

// Error returns "file:line:column: message (hint)" on one line.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", e.Line, max(e.Column, 1))
	}
	b.WriteString(": ")
	b.WriteString(e.Msg)
	if e.Hint != "" {
		b.WriteString(" (" + e.Hint + ")")
	}
	return b.String()
}

// Place is where something was written in a recipe.
type Place struct {
	File         string
	Line, Column int
}

func (p Place) errorf(hint, format string, args ...any) *Error {
	return &Error{File: p.File, Line: p.Line, Column: p.Column, Msg: fmt.Sprintf(format, args...), Hint: hint}
}

// Place returns where field was written, such as "kernel.package" or
// "packages[3]" (indexes are those of the merged recipe). For a field that
// was left out it is the place of the nearest field around it.
func (r *Recipe) Place(field string) Place {
	for f := field; ; f = parent(f) {
		if p, ok := r.places[f]; ok {
			return p
		}
		if f == "" {
			return Place{File: r.Path}
		}
	}
}

// Errorf returns an Error at the place of field. It is for those who find a
// fault only later, as the resolver does.
func (r *Recipe) Errorf(field, hint, format string, args ...any) *Error {
	return r.Place(field).errorf(hint, format, args...)
}

// has tells whether field was written.
func (r *Recipe) has(field string) bool {
	_, ok := r.places[field]
	return ok
}

// parent cuts the last step off a field: "a.b[2]" → "a.b" → "a" → "".
func parent(field string) string {
	i := strings.LastIndexAny(field, ".[")
	if i < 0 {
		return ""
	}
	return field[:i]
}

// Nearest returns the word of words that a person who wrote word most likely
// meant, or "" if none is near.
func Nearest(word string, words []string) string {
	best, at := "", min(1+max(len(word)/3, 2), len(word))
	for _, w := range words {
		if d := distance(word, w); d < at {
			best, at = w, d
		}
	}
	return best
}

// distance counts the letters to insert, delete, replace or swap with their
// neighbour to make b of a (optimal string alignment).
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
