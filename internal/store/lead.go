package store

import "context"

// Lead runs fn while this process is the one, of all that share the store,
// that carries rollouts on and watches the fleet, and again whenever it is,
// until ctx ends. The context of fn ends when another one may be it. A store
// that is nobody else's is always led.
func Lead(ctx context.Context, s Store, fn func(ctx context.Context)) {
	if l, ok := s.(interface {
		Lead(context.Context, func(context.Context))
	}); ok {
		l.Lead(ctx, fn)
		return
	}
	fn(ctx)
}
