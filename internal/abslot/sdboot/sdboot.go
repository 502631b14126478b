// Package sdboot is a model of what systemd-boot (252 and later) does with
// the unified kernel images in \EFI\Linux: in which order it takes them, which
// it starts, and how it counts trial boots in their names.
//
// It models the case Turnout lives in: no default, one-shot or sysfail entry,
// and UKIs whose .osrel gives them all the same sort-key, machine-id and
// version, so that names decide. It shares no code with package abslot, whose
// names it judges. TestAgainstLoader holds it against the real loader.
//
// Source: systemd src/boot/efi/boot.c and src/boot/efi/efi-string.c of
// v252, functions config_entry_compare, config_entry_parse_tries,
// config_entry_bump_counters and config_select_default_entry; the version
// order is that of the UAPI Group's version format specification.
package sdboot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const suffix = ".efi"

// entry is a UKI as the loader sees it.
type entry struct {
	file       string
	id         string // lower case
	prefix     string // the file name before the counters
	counted    bool
	left, done uint64
}

// Select returns the file that the loader starts, given the names in
// \EFI\Linux in directory order. ok is false when there is none: the loader
// then shows a menu without entries.
func Select(files []string) (file string, ok bool) {
	es := entries(files)
	if len(es) == 0 {
		return "", false
	}
	return es[0].file, true
}

// Order returns all files that the loader lists, in its order.
func Order(files []string) []string {
	var out []string
	for _, e := range entries(files) {
		out = append(out, e.file)
	}
	return out
}

// Boot returns the file that the loader starts, and the names in the folder
// afterwards: a counted file was renamed before it was started. started is
// the new name.
func Boot(files []string) (started string, after []string, ok bool) {
	es := entries(files)
	if len(es) == 0 {
		return "", slices.Clone(files), false
	}
	started = es[0].bumped()
	after = slices.Clone(files)
	after[slices.Index(after, es[0].file)] = started
	return started, after, true
}

// ID returns what the loader calls the entry of a file, in the variable
// LoaderEntrySelected: the name that the file had before this boot was
// counted. (Later versions leave the counters out; that only matters for two
// names that differ in nothing else.)
func ID(file string) string { return strings.ToLower(file) }

func entries(files []string) []entry {
	var es []entry
	for _, f := range files {
		lower := strings.ToLower(f)
		if strings.HasSuffix(lower, suffix) && !strings.HasPrefix(lower, ".") && !strings.HasPrefix(lower, "auto-") {
			es = append(es, parse(f))
		}
	}
	slices.SortStableFunc(es, compare) // the loader's insertion sort is stable
	return es
}

// parse finds "+LEFT" or "+LEFT-DONE" right before the suffix.
func parse(file string) entry {
	body := file[:len(file)-len(suffix)]
	e := entry{file: file, id: ID(file)}
	for i := range body {
		if body[i] != '+' {
			continue
		}
		left, done, hasDone := strings.Cut(body[i+1:], "-")
		l, err := strconv.ParseUint(left, 10, 31)
		d, derr := uint64(0), error(nil)
		if hasDone {
			d, derr = strconv.ParseUint(done, 10, 31)
		}
		if err == nil && derr == nil {
			e.counted, e.left, e.done, e.prefix = true, l, d, body[:i]
			break
		}
	}
	return e
}

// bumped returns the name after the loader has counted: one try less, one
// more done. It counts on when there are none left.
func (e entry) bumped() string {
	if !e.counted {
		return e.file
	}
	left := e.left
	if left > 0 {
		left--
	}
	return fmt.Sprintf("%s+%d-%d%s", e.prefix, left, e.done+1, e.file[len(e.file)-len(suffix):])
}

// compare orders entries as the loader tries them.
func compare(a, b entry) int {
	if spent := b2i(a.counted && a.left == 0) - b2i(b.counted && b.left == 0); spent != 0 {
		return spent
	}
	if c := CompareVersions(b.id, a.id); c != 0 {
		return c
	}
	if !a.counted || !b.counted {
		return 0
	}
	if a.left != b.left {
		return sign(a.left < b.left)
	}
	if a.done != b.done {
		return sign(a.done > b.done)
	}
	return 0
}

func sign(positive bool) int {
	if positive {
		return 1
	}
	return -1
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// CompareVersions is negative when a is older than b, zero when they are
// equal, positive when a is newer: strverscmp_improved of systemd, after the
// UAPI Group's version format specification.
func CompareVersions(a, b string) int {
	for {
		a, b = strings.TrimLeftFunc(a, invalid), strings.TrimLeftFunc(b, invalid)
		if c, done := separator(&a, &b, '~'); done {
			return c
		}
		if a == "" || b == "" {
			return min(len(a), 1) - min(len(b), 1)
		}
		for _, s := range []byte("-^.") {
			if c, done := separator(&a, &b, s); done {
				return c
			}
		}
		var c int
		if startsWith(a, digit) || startsWith(b, digit) {
			c = section(&a, &b, digit, compareNumbers)
		} else {
			c = section(&a, &b, letter, strings.Compare)
		}
		if c != 0 {
			return c
		}
	}
}

// separator handles a character that makes the string that has it the older
// one, and is skipped when both have it.
func separator(a, b *string, s byte) (c int, decided bool) {
	has := func(x string) bool { return x != "" && x[0] == s }
	ha, hb := has(*a), has(*b)
	if ha != hb {
		return b2i(hb) - b2i(ha), true
	}
	if ha {
		*a, *b = (*a)[1:], (*b)[1:]
	}
	return 0, false
}

// section cuts the leading characters of one class from both and compares
// them; of letters, a prefix is older, which is what strings.Compare says.
func section(a, b *string, class func(rune) bool, cmp func(a, b string) int) int {
	cut := func(s *string) string {
		rest := strings.TrimLeftFunc(*s, class)
		head := (*s)[:len(*s)-len(rest)]
		*s = rest
		return head
	}
	return cmp(cut(a), cut(b))
}

// compareNumbers takes a missing number for older than any.
func compareNumbers(a, b string) int {
	if (a == "") != (b == "") {
		return b2i(a != "") - b2i(b != "")
	}
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return sign(len(a) > len(b))
	}
	return strings.Compare(a, b)
}

func digit(r rune) bool  { return r >= '0' && r <= '9' }
func letter(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }

func invalid(r rune) bool { return !digit(r) && !letter(r) && !strings.ContainsRune("~-^.", r) }

func startsWith(s string, class func(rune) bool) bool { return s != "" && class(rune(s[0])) }
