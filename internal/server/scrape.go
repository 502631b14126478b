package server

import "net/http"

// scrape answers Prometheus.
func (s *Server) scrape(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	s.metrics.Handler().ServeHTTP(w, r)
	return nil, errAnswered
}
