package server

import (
	"net/http"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/timeline"
)

// timeline answers with a node's story in episodes, newest first.
func (s *Server) timeline(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	ctx := r.Context()
	n, err := s.Store.Node(ctx, r.PathValue("node"))
	if err != nil {
		return nil, err
	}
	ev, err := s.Store.Events(ctx, store.EventQuery{Node: n.Name, Last: true, Limit: 1000})
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"dhcp.", "tftp.", "http."} { // told before the node had a name
		early, err := s.Store.Events(ctx, store.EventQuery{Kind: kind, Last: true, Limit: 1000})
		if err != nil {
			return nil, err
		}
		for _, e := range early {
			mac, _, _ := strings.Cut(e.Message, ": ")
			if e.Node == "" && slices.Contains(n.MACs, fleet.MAC(mac)) {
				ev = append(ev, e)
			}
		}
	}
	slices.SortFunc(ev, func(a, b fleet.Event) int { return int(a.ID - b.ID) })
	eps := timeline.Episodes(ev)
	slices.Reverse(eps)
	return orEmpty(eps), nil
}
