package abslot

import "path"

// Keep reports whether, of two names that share one file after an interrupted
// rename, a is to be kept rather than b: the safer or later of the two. It is
// for the repair of an ESP before it is mounted (disk.RepairESP), in LinuxDir
// and TurnoutDir.
func Keep(a, b string) bool {
	ra, rb := keepRank(a), keepRank(b)
	if ra != rb {
		return ra > rb
	}
	na, erra := ParseName(a)
	nb, errb := ParseName(b)
	switch {
	case erra != nil || errb != nil:
		return a < b
	case na.Generation != nb.Generation:
		return na.Generation > nb.Generation
	case na.Counted != nb.Counted:
		return !na.Counted
	default:
		return na.Left < nb.Left
	}
}

// keepRank puts what no loader starts above what one does, and what may be
// incomplete or is no name of ours below everything.
func keepRank(name string) int {
	switch path.Ext(name) {
	case tempSuffix:
		return 0
	case retiredSuffix:
		return 6
	case stagedSuffix:
		return 5
	}
	n, err := ParseName(name)
	switch {
	case err != nil && isBootable(name):
		return 1
	case err != nil:
		return 2
	case n.Counted && n.Left == 0 && n.Done >= condemnedDone:
		return 4
	default:
		return 3
	}
}

// Folders are the folders of the ESP that this package writes to, for its
// repair.
var Folders = []string{LinuxDir, TurnoutDir}
