// Package buildinfo says which build of Turnout a program is.
package buildinfo

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// version is set by the linker: -X …/internal/buildinfo.version=v1.2.3.
var version string

// Version returns the version that the build was given, else the module
// version or the Git revision that Go recorded, else "unknown".
func Version() string {
	if version != "" && version != "unknown" {
		return version
	}
	bi, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return fromBuildInfo(bi)
}

func fromBuildInfo(bi *debug.BuildInfo) string {
	if v := bi.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	set := map[string]string{}
	for _, s := range bi.Settings {
		set[s.Key] = s.Value
	}
	rev := set["vcs.revision"]
	if rev == "" {
		return "unknown"
	}
	if set["vcs.modified"] == "true" {
		rev += "-dirty"
	}
	return rev
}

// Long returns the version with the Go release and platform, for `version`.
func Long() string {
	return strings.Join([]string{Version(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}, " ")
}
