package image

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// facts are digests of what a root file system is made from, by the names
// that people know them by. They decide nothing: they only tell why a result
// in the store could not be used.
type facts map[string]string

// Facts that a base (rootfs.Spec.Base) depends on.
const (
	factProgram  = "imgbuild itself"
	factPackages = "packages of the lock"
	factEpoch    = "date of the archives"
	factModules  = "kernel.exclude_modules"
	factBuild    = "what the driver is compiled from"
	factAccounts = "accounts of the lock"
)

var baseFacts = []string{factProgram, factPackages, factEpoch, factModules, factBuild, factAccounts}

// rootFacts are the facts of a root; rr is what rootRecipe returns.
func rootFacts(rr recipe.Recipe, f *lock.File, tool, agentDigest string, trust []byte) (facts, error) {
	all := map[string]any{
		factProgram: programDigest(), factPackages: f.Packages, factEpoch: f.SourceDateEpoch,
		factModules: rr.Kernel.ExcludeModules, "mksquashfs": tool, "node agent": agentDigest, "keys and server": trust,
	}
	if len(f.Build) > 0 {
		all[factBuild] = []any{f.Build, rr.Driver.Modules}
	}
	if len(f.Accounts) > 0 {
		all[factAccounts] = f.Accounts
	}
	rr.Kernel.ExcludeModules = nil
	v := reflect.ValueOf(rr)
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "" && name != "-" {
			all[name] = v.Field(i).Interface()
		}
	}
	facts := facts{}
	for name, value := range all {
		digest, err := jsonDigest(value)
		if err != nil {
			return nil, err
		}
		facts[name] = digest
	}
	return facts, nil
}

// changed names what differs between two sets of facts, among names if those
// are given.
func (f facts) changed(old facts, names []string) []string {
	var changed []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		if (names == nil || slices.Contains(names, name)) && f[name] != old[name] {
			changed = append(changed, name)
		}
	}
	return changed
}

// why tells why no result in the store could be used.
func (b *build) why(names []string) string {
	if b.NoCache {
		return "--no-cache"
	}
	raw, err := os.ReadFile(b.lastPath())
	if errors.Is(err, fs.ErrNotExist) {
		return "no earlier build of " + b.Recipe.Name + " in this store"
	}
	var old facts
	if err != nil || json.Unmarshal(raw, &old) != nil {
		return "the earlier build left no record"
	}
	changed := b.facts.changed(old, names)
	if len(changed) == 0 {
		return "the result of the last build is no longer in the store"
	}
	return "changed since the last build: " + strings.Join(changed, ", ")
}

// lastPath is where the facts of the last build of a recipe of this name are.
func (b *build) lastPath() string {
	return filepath.Join(b.Store.Dir(), "last", b.Recipe.Name+".json")
}

// remember writes the facts down for the next build.
func (b *build) remember() error {
	raw, err := json.MarshalIndent(b.facts, "", " ")
	if err != nil {
		return err
	}
	name := b.lastPath()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	tmp := b.work.path("last.json")
	if err := os.WriteFile(tmp, append(raw, '\n'), 0o644); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return os.Rename(tmp, name)
}
