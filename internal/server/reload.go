package server

// live returns the options as they are now. What of them may change while
// the server runs is read from here alone.
func (s *Server) live() *Options { return s.current.Load() }

// Reload takes over what may change while the server runs: who may operate
// it, who may sign images, whom it believes of TPMs, discovery, the pace and
// strictness of attestation, where consoles are, recovery,
// the other servers, and caches. Requests under way end
// by what they began with. Console sessions of tokens that are gone end.
func (s *Server) Reload(o Options) {
	next := *s.live()
	next.Tokens, next.ImageKeys, next.TPM = o.Tokens, o.ImageKeys, o.TPM
	next.Discovery, next.ConsoleLogs = o.Discovery, o.ConsoleLogs
	next.AttestEvery, next.AttestAlarm, next.Baseline = o.AttestEvery, o.AttestAlarm, o.Baseline
	next.Recovery, next.Servers, next.Caches = o.Recovery, o.Servers, o.Caches
	s.current.Store(&next)
}
