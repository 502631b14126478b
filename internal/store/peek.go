package store

import (
	"context"
	"errors"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Peek returns those of the named nodes that are there, in that order, as
// the store holds them where it can: they must not be changed. Looking at a
// large fleet costs little that way.
func Peek(ctx context.Context, rd Reader, names []string) ([]*fleet.Node, error) {
	if p, ok := rd.(interface {
		Peek(ctx context.Context, names []string) ([]*fleet.Node, error)
	}); ok {
		return p.Peek(ctx, names)
	}
	out := make([]*fleet.Node, 0, len(names))
	for _, name := range names {
		n, err := rd.Node(ctx, name)
		switch {
		case err == nil:
			out = append(out, n)
		case !errors.Is(err, ErrNotFound):
			return nil, err
		}
	}
	return out, nil
}
