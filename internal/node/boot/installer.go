//go:build linux

package boot

import (
	"context"
	"time"

	"github.com/turnout-project/turnout/internal/node/installer"
)

// installerWatchdog is the watchdog of an installer whose command line names
// none.
const installerWatchdog = 2 * time.Minute

// install runs the installer and resets the machine into what it installed.
func (m *machine) install(ctx context.Context) error {
	err := installer.Run(ctx, installer.Config{
		Server: m.cmdline.Server, Wipe: m.cmdline.Wipe, Grant: m.watchdog.Grant, Log: m.log,
	})
	if err != nil {
		return err
	}
	m.reset(time.Second)
	return nil
}
