package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
)

// paging is which part of a list is asked for: what comes after a key, and
// how much of it (0: all).
type paging struct {
	after string
	limit int
}

func pageOf(r *http.Request) (paging, error) {
	q := r.URL.Query()
	p := paging{after: q.Get("after")}
	if l := q.Get("limit"); l != "" {
		n, err := strconv.Atoi(l)
		if err != nil || n < 1 {
			return p, problem(http.StatusBadRequest, "", "limit=%q: want a number above 0", l)
		}
		p.limit = n
	}
	return p, nil
}

// page returns a part of a list in its order: what follows the key that was
// asked for, which need not be in the list any more. If there is more, the
// answer's Link header (RFC 8288) says where.
func page[T any](w http.ResponseWriter, r *http.Request, p paging, all []T, key func(T) string, follows func(x T, after string) bool) []T {
	if p.after != "" {
		all = slices.DeleteFunc(all, func(x T) bool { return !follows(x, p.after) })
	}
	if p.limit > 0 && len(all) > p.limit {
		all = all[:p.limit]
		u := *r.URL
		q := u.Query()
		q.Set("after", key(all[p.limit-1]))
		u.RawQuery = q.Encode()
		w.Header().Set("Link", fmt.Sprintf("<%s>; rel=\"next\"", u.RequestURI()))
	}
	return orEmpty(all)
}

// isOlder compares IDs of rollouts, "r9" and "r10".
func isOlder(a, b string) bool { return len(a) < len(b) || len(a) == len(b) && a < b }
