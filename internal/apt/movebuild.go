package apt

import (
	"context"
	"fmt"
	"slices"

	"github.com/turnout-project/turnout/internal/lock"
)

// tools keeps the build tools that are not named.
func (m *mover) tools(ctx context.Context) error {
	fresh, err := m.root.tools(ctx, m.ix)
	if err != nil && len(m.old.Tools) < len(tools) {
		return err
	}
	for _, name := range tools {
		p, ok := lock.Find(m.old.Tools, name)
		if !ok || m.named(name) {
			if err != nil {
				return err
			}
			p, _ = lock.Find(fresh, name)
			m.why[name] = "asked for"
		}
		m.new.Tools = append(m.new.Tools, p)
	}
	return nil
}

// build moves the root that the driver's modules are compiled in.
func (m *mover) build(ctx context.Context) error {
	if m.driver == nil {
		return nil
	}
	var have, sources []lock.Package
	for _, p := range m.old.Build {
		if slices.Contains(m.driver.sources, p.Name) {
			sources = append(sources, p)
		} else {
			have = append(have, p)
		}
	}
	h := headers(m.kernel)
	if len(have) == 0 { // no driver before
		if err := m.pretend(nil, nil); err != nil {
			return err
		}
		var err error
		m.new.Build, err = m.root.build(ctx, m.ix, m.r, m.kernel, m.driver)
		return err
	}
	manual := slices.Concat(m.ix.essential, builders, []string{h, merged})
	var args []string
	for _, p := range have {
		if m.named(p.Name) && p.Name != headers(m.old.Kernel) {
			args = append(args, p.Name)
			m.why[p.Name] = "asked for"
		}
	}
	if _, ok := lock.Find(have, h); !ok || m.why[h] != "" {
		args = append(args, h)
	}
	if old := headers(m.old.Kernel); old != h {
		args = append(args, old+"-")
	}
	chosen, err := m.move(ctx, have, args, manual)
	if err != nil {
		return fmt.Errorf("root to compile the driver in: %w", err)
	}
	m.new.Build = m.locked(chosen)
	if !m.moves {
		m.new.Build = append(m.new.Build, sources...)
		return nil
	}
	for _, name := range m.driver.sources {
		if _, ok := lock.Find(m.new.Build, name); !ok {
			m.new.Build = append(m.new.Build, m.ix.upstream(name, m.driver.version).locked(false))
		}
	}
	return nil
}
