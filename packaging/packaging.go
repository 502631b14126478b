// Package packaging carries the files that installers put beside the
// programs.
package packaging

import _ "embed"

// ServerUnit is the systemd unit of pxeserver, as the Debian package installs
// it: the program in /usr/bin, its configuration in /etc/turnout.
//
//go:embed systemd/pxeserver.service
var ServerUnit string
