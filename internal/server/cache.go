package server

import (
	"net/http"
	"net/netip"
	"slices"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// cacheOf returns the HTTP cache that a node is to ask for images: its
// rack's, which is its failure domain, else the rack in its name.
func (s *Server) cacheOf(n *fleet.Node) string {
	caches := s.live().Caches
	if len(caches) == 0 {
		return ""
	}
	for _, rack := range []string{n.Domain, rackOf(n.Name)} {
		if u, ok := caches[rack]; ok && rack != "" {
			return u
		}
	}
	return caches["*"]
}

// ForCaches returns the handler of a listener for caches: blobs of published
// images, by plain HTTP, under the paths that they have in the API, and
// nothing else. They are named by their digests, so what is there never
// changes. Nodes hold what they get against the signed manifest; who may
// read it is up to clients, of which none means all.
func (s *Server) ForCaches(clients []netip.Prefix) http.Handler {
	m := http.NewServeMux()
	blob := s.answer(s.imageBlob)
	m.HandleFunc("GET "+api.PathImages+"{digest}/blobs/{blob}", func(w http.ResponseWriter, r *http.Request) {
		a, err := netip.ParseAddrPort(r.RemoteAddr)
		if len(clients) > 0 && (err != nil || !slices.ContainsFunc(clients, func(p netip.Prefix) bool { return p.Contains(a.Addr().Unmap()) })) {
			s.refuse(w, r, problem(http.StatusForbidden, "image_cache.clients lists who may", "images are not for %s", r.RemoteAddr))
			return
		}
		w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
		blob(w, r)
	})
	return m
}
