//go:build linux

package boot

import (
	"context"
	"errors"
)

func (m *machine) install(context.Context) error { return errors.New("not yet") }
