package lock

import "strings"

// CompareVersions compares two Debian versions (Debian Policy 5.6.12) and
// returns -1, 0 or 1: epoch first, then upstream version, then revision,
// where "~" sorts before everything, even the end.
func CompareVersions(a, b string) int {
	ea, ua, ra := splitVersion(a)
	eb, ub, rb := splitVersion(b)
	for _, pair := range [][2]string{{ea, eb}, {ua, ub}, {ra, rb}} {
		if c := comparePart(pair[0], pair[1]); c != 0 {
			return c
		}
	}
	return 0
}

func splitVersion(v string) (epoch, upstream, revision string) {
	epoch, rest, ok := strings.Cut(v, ":")
	if !ok {
		epoch, rest = "0", v
	}
	if i := strings.LastIndexByte(rest, '-'); i >= 0 {
		return epoch, rest[:i], rest[i+1:]
	}
	return epoch, rest, ""
}

// Upstream returns the version without epoch and Debian revision, the part a
// kernel module and its libraries must share.
func Upstream(version string) string {
	_, upstream, _ := splitVersion(version)
	return upstream
}

// comparePart compares stretches of non-digits and of digits in turn.
func comparePart(a, b string) int {
	for a != "" || b != "" {
		var x, y string
		x, a = cutWhile(a, false)
		y, b = cutWhile(b, false)
		if c := compareText(x, y); c != 0 {
			return c
		}
		x, a = cutWhile(a, true)
		y, b = cutWhile(b, true)
		if c := compareNumber(x, y); c != 0 {
			return c
		}
	}
	return 0
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func cutWhile(s string, digits bool) (head, tail string) {
	i := 0
	for i < len(s) && isDigit(s[i]) == digits {
		i++
	}
	return s[:i], s[i:]
}

// compareNumber compares digits of any length by value.
func compareNumber(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return sign(len(a) - len(b))
	}
	return strings.Compare(a, b)
}

func compareText(a, b string) int {
	for i := range max(len(a), len(b)) {
		if c := sign(weight(a, i) - weight(b, i)); c != 0 {
			return c
		}
	}
	return 0
}

// weight of the character at i: "~" before the end before letters before the rest.
func weight(s string, i int) int {
	switch {
	case i >= len(s):
		return 0
	case s[i] == '~':
		return -1
	case 'A' <= s[i] && s[i] <= 'Z', 'a' <= s[i] && s[i] <= 'z':
		return int(s[i])
	}
	return int(s[i]) + 256
}

func sign(n int) int {
	switch {
	case n < 0:
		return -1
	case n > 0:
		return 1
	}
	return 0
}
