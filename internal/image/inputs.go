package image

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
)

// format is part of every digest of inputs. It changes when the way in which
// an image is made from them does.
const format = "turnout image 1"

// inputs are digests of what an image is made from.
type inputs struct {
	lock  string        // of the lock file
	root  string        // of what the root file system is made from
	all   string        // of everything; salt and UUIDs are derived from it
	rr    recipe.Recipe // what rootRecipe made of the recipe
	agent string        // of the node agent
}

// digestInputs computes the digests of a build. What only changes the UKIs
// (command line, stub, labels) is left out of root, so that such a change
// needs no new root file system. Its verity tree is another all the same,
// since the salt comes from all: two images never share a root hash.
func digestInputs(r *recipe.Recipe, f *lock.File, agent string, trust []byte) (inputs, error) {
	agentDigest, err := fileDigest(agent)
	if err != nil {
		return inputs{}, fmt.Errorf("%w: node agent: %w; build it with `make build` or name it with --nodeagent", ErrOptions, err)
	}
	lockDigest, err := f.Digest()
	if err != nil {
		return inputs{}, err
	}
	rr, err := rootRecipe(r)
	if err != nil {
		return inputs{}, err
	}
	in := inputs{lock: lockDigest, rr: rr, agent: agentDigest}
	made := []any{format, rr, f.Kernel, f.Packages, f.SourceDateEpoch, agentDigest, trust}
	if len(f.Build) > 0 {
		made = append(made, f.Build)
	}
	if len(f.Accounts) > 0 {
		made = append(made, "accounts", f.Accounts)
	}
	if in.root, err = jsonDigest(made...); err != nil {
		return inputs{}, err
	}
	in.all, err = jsonDigest(format, r.Digest, lockDigest, agentDigest, trust)
	return in, err
}

// rootRecipe is what of a recipe has a part in the root file system, with the
// contents of files in place of their names.
func rootRecipe(r *recipe.Recipe) (recipe.Recipe, error) {
	c := *r
	c.Path, c.Digest, c.Request, c.Extends, c.Remove = "", "", "", "", nil
	c.Kernel.Cmdline, c.Labels = nil, nil
	c.Files = append([]recipe.File(nil), r.Files...)
	for i := range c.Files {
		f := &c.Files[i]
		if f.Source == "" {
			continue
		}
		d, err := fileDigest(filepath.Join(filepath.Dir(r.Path), f.Source))
		if err != nil {
			return recipe.Recipe{}, r.Errorf(fmt.Sprintf("files[%d].source", i), "", "%v", err)
		}
		f.Source = d
	}
	return c, nil
}

func jsonDigest(v ...any) (string, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("digest of inputs: %w", err)
	}
	return manifest.DigestOf(b), nil
}

func fileDigest(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // read only
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil)), nil
}

// programDigest identifies the running program. Should it be unknown, the
// process id takes its place: then no cache is ever hit.
var programDigest = sync.OnceValue(func() string {
	exe, err := os.Executable()
	if err == nil {
		exe, err = fileDigest(exe)
	}
	if err != nil {
		return fmt.Sprintf("process %d", os.Getpid())
	}
	return exe
})

// derive returns 32 bytes that depend on purpose and inputs only.
func derive(purpose, inputs string) [32]byte {
	return sha256.Sum256([]byte("turnout " + purpose + "\n" + inputs))
}

// derivedUUID returns a UUID (RFC 9562, version 8) of purpose and inputs.
func derivedUUID(purpose, inputs string) [16]byte {
	d := derive(purpose, inputs)
	u := [16]byte(d[:16])
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return u
}

// uuidString writes a UUID in its usual form.
func uuidString(u [16]byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
