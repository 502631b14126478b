package server

// Patterns returns what Handler registers for the API's description.
func (s *Server) Patterns() []string { return s.mux().patterns }

// Described returns the patterns that openapi.json describes.
func Described() (out []string) {
	for _, o := range operations {
		out = append(out, o.pattern)
	}
	return out
}

// NothingOutlying is what ComparePeers begins with.
func NothingOutlying() map[[2]string]*outlying { return map[[2]string]*outlying{} }
