package buildinfo

import (
	"runtime/debug"
	"strings"
	"testing"
)

func TestFromBuildInfo(t *testing.T) {
	set := func(kv ...string) *debug.BuildInfo {
		bi := &debug.BuildInfo{}
		bi.Main.Version = "(devel)"
		for i := 0; i < len(kv); i += 2 {
			bi.Settings = append(bi.Settings, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return bi
	}
	module := set("vcs.revision", "abc")
	module.Main.Version = "v1.2.3"
	tests := []struct {
		name string
		bi   *debug.BuildInfo
		want string
	}{
		{"module version", module, "v1.2.3"},
		{"revision", set("vcs.revision", "abc", "vcs.modified", "false"), "abc"},
		{"changed tree", set("vcs.revision", "abc", "vcs.modified", "true"), "abc-dirty"},
		{"nothing", set(), "unknown"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := fromBuildInfo(tt.bi); got != tt.want {
				t.Errorf("fromBuildInfo = %q; want %q", got, tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = "v9"
	if got := Version(); got != "v9" {
		t.Errorf("Version = %q; want the linker's", got)
	}
	if got := Long(); !strings.HasPrefix(got, "v9 go") {
		t.Errorf("Long = %q", got)
	}
}
