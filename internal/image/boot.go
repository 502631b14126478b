package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/initrd"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/uki"
	"github.com/turnout-project/turnout/internal/verity"
)

// commonCmdline is given to every kernel: a panic or an oops ends in a reset,
// so that the loader's boot counting goes on; systemd mounts nothing by
// partition type, and does not act on roothash=, which the initrd has done.
const commonCmdline = "console=tty0 console=%s panic=10 oops=panic systemd.gpt_auto=0 systemd.verity=0 loglevel=5"

var serialConsole = map[string]string{"amd64": "ttyS0,115200", "arm64": "ttyAMA0,115200"}

// parts are what an image has beside its root.
type parts struct {
	rootBlob     manifest.Blob
	verityFile   string // path
	verity       manifest.Verity
	uki          []byte
	installer    []byte
	loader       []byte
	measurements manifest.Measurements
}

// bootParts makes the verity tree and the boot files of a root.
func (b *build) bootParts(ctx context.Context, r root) (*parts, error) {
	tool, ok := lock.Find(b.Lock.Tools, "systemd-boot-efi")
	if !ok {
		return nil, fmt.Errorf("the lock has no tool systemd-boot-efi; make it anew with `imgbuild lock --update`")
	}
	boot, err := readBootFiles(ctx, b.Store.Path(tool.SHA256), b.Recipe.Architecture)
	if err != nil {
		return nil, err
	}
	kernel, err := os.ReadFile(r.kernel)
	if err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	p := &parts{verityFile: b.work.path("root.verity"), loader: boot.loader}
	var slotInitrd, installerInitrd []byte
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return b.makeVerity(gctx, r, p) })
	g.Go(func() (err error) { slotInitrd, err = b.initrd("slot initrd", r, b.slotModules()); return })
	g.Go(func() (err error) {
		installerInitrd, err = b.initrd("installer initrd", r, b.installerModules())
		return
	})
	if err := g.Wait(); err != nil {
		return nil, err
	}
	u := ukiParts{stub: boot.stub, kernel: kernel, initrd: slotInitrd, release: r.release,
		label: b.Recipe.Name + " " + b.Recipe.Version, cmdline: slotCmdline(b.Recipe, p.verity.RootHash)}
	if p.uki, err = buildUKI(u); err != nil {
		return nil, fmt.Errorf("UKI: %w", err)
	}
	u.initrd, u.cmdline, u.label = installerInitrd, installerCmdline(b.Recipe), "installer, "+u.label
	if p.installer, err = buildUKI(u); err != nil {
		return nil, fmt.Errorf("installer UKI: %w", err)
	}
	b.checkSize("UKI", p.uki)
	b.checkSize("installer UKI", p.installer)
	if err := b.sign(p); err != nil {
		return nil, err
	}
	p.measurements, err = measure.Predict(measure.Input{UKI: p.uki, Installer: p.installer, Loader: p.loader})
	return p, err
}

// sign signs what firmware starts, if there is a key to sign with. It comes
// before anything is measured: signing pads a program, and so changes it.
func (b *build) sign(p *parts) error {
	if b.Boot == nil {
		return nil
	}
	for _, x := range []struct {
		what string
		pe   *[]byte
	}{{"UKI", &p.uki}, {"installer UKI", &p.installer}, {"systemd-boot", &p.loader}} {
		signed, err := b.Boot.Sign(*x.pe)
		if err != nil {
			return fmt.Errorf("%s: %w", x.what, err)
		}
		*x.pe = signed
	}
	return nil
}

// largeUKI is a size in bytes above which some firmware fails to load a UKI.
const largeUKI = 128 << 20

func (b *build) checkSize(what string, pe []byte) {
	if len(pe) > largeUKI {
		b.Progress.Note("warning: the %s has %s; some firmware cannot load that: look at boot.modules", what, progress.Size(int64(len(pe))))
	}
}

// makeVerity hashes the root: its chunks, and its verity tree.
func (b *build) makeVerity(ctx context.Context, r root, p *parts) error {
	in, err := os.Open(r.squashfs)
	if err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	defer func() { _ = in.Close() }() // read only
	if p.rootBlob, err = chunksOf(ctx, in); err != nil {
		return err
	}
	if p.rootBlob.Digest != r.digest {
		return fmt.Errorf("root file system %s is damaged: its digest is %s, not %s; remove its folder, or build with --no-cache", r.squashfs, p.rootBlob.Digest, r.digest)
	}
	out, err := os.Create(p.verityFile)
	if err != nil {
		return err
	}
	task := b.Progress.Start("verity tree", progress.Bytes)
	size := p.rootBlob.SizeBytes
	salt, uuid := derive("verity salt", b.in.all), derivedUUID("verity UUID", b.in.all)
	res, err := verity.Build(ctx, in, size, out, verity.Params{Salt: salt[:], UUID: uuid, Progress: func(n int64) { task.Update(n, size) }})
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	task.End("")
	p.verity = manifest.Verity{
		RootHash: hex.EncodeToString(res.RootHash[:]), Salt: hex.EncodeToString(salt[:]), HashAlgorithm: verity.Algorithm,
		BlockSize: verity.BlockSize, DataBlocks: res.DataBlocks, UUID: uuidString(uuid),
	}
	return nil
}

// slotModules and installerModules are the kernel modules of the initrds.
func (b *build) slotModules() initrd.Set {
	return initrd.Slot.With(initrd.Set{Required: b.Recipe.Boot.Modules})
}

func (b *build) installerModules() initrd.Set { return b.slotModules().With(initrd.Network) }

func (b *build) initrd(what string, r root, set initrd.Set) ([]byte, error) {
	task := b.Progress.Start(what, progress.Bytes)
	modules, err := initrd.Modules(r.modules, set)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	agent, err := os.ReadFile(b.Agent)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	c := initrd.Contents{
		Init: agent, Release: r.release, Modules: modules,
		Files: []initrd.File{{Path: manifest.TrustPath, Mode: 0o644, Data: b.trust}},
	}
	data, how, err := b.compressed(c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	task.End(fmt.Sprintf("%s, %d modules%s", progress.Size(int64(len(data))), len(modules), how))
	return data, nil
}

// compressed returns an initrd, from the store if one of the same contents is
// there: compressing takes longer than all else about it.
func (b *build) compressed(c initrd.Contents) (data []byte, how string, err error) {
	build := func() ([]byte, error) {
		var out bytes.Buffer
		err := initrd.Build(&out, c)
		return out.Bytes(), err
	}
	if b.NoCache {
		data, err = build()
		return data, "", err
	}
	digest, err := initrd.Digest(c)
	if err != nil {
		return nil, "", err
	}
	key := "imgbuild initrd " + digest + " by " + programDigest()
	if path, hit := b.lookup(key); hit {
		kept, err := os.ReadFile(path)
		if n := len(kept) - sha256.Size; err == nil && n > 0 && sha256.Sum256(kept[:n]) == [sha256.Size]byte(kept[n:]) {
			return kept[:n], "; from the store: module files, node agent and keys are unchanged", nil
		}
		b.Progress.Note("an initrd in the store is damaged, making it anew")
		if err := os.RemoveAll(path); err != nil {
			return nil, "", fmt.Errorf("store: %w", err)
		}
	}
	if data, err = build(); err != nil {
		return nil, "", err
	}
	_, err = b.Store.PutKey(key, func(path string) error {
		sum := sha256.Sum256(data)
		return os.WriteFile(path, append(bytes.Clone(data), sum[:]...), 0o644)
	})
	return data, "", err
}

// reservedWords are kernel parameters that the build sets itself.
var reservedWords = []string{"roothash", "systemd.gpt_auto", "systemd.verity", "turnout.mode", "turnout.verify", "turnout.watchdog"}

// checkCmdline refuses a recipe that sets what the build sets.
func checkCmdline(r *recipe.Recipe) error {
	for i, w := range r.Kernel.Cmdline {
		key, _, _ := strings.Cut(w, "=")
		if slices.Contains(reservedWords, key) {
			return r.Errorf(fmt.Sprintf("kernel.cmdline[%d]", i), "boot.verify and boot.watchdog have fields of their own",
				"kernel.cmdline: %s is set by the build itself", key)
		}
	}
	return nil
}

// slotCmdline returns the command line of the UKI that boots a slot. The
// recipe's words come before those that must hold, because the last one of a
// key counts.
func slotCmdline(r *recipe.Recipe, rootHash string) string {
	words := []string{fmt.Sprintf(commonCmdline, serialConsole[r.Architecture])}
	words = append(words, r.Kernel.Cmdline...)
	words = append(words, "ro", "roothash="+rootHash)
	if r.Boot.Watchdog > 0 {
		words = append(words, fmt.Sprintf("turnout.watchdog=%d", int64(time.Duration(r.Boot.Watchdog)/time.Second)))
	}
	if r.Boot.Verify != "" {
		words = append(words, "turnout.verify="+r.Boot.Verify)
	}
	return strings.Join(words, " ")
}

// installerCmdline returns the command line of the UKI that installs.
func installerCmdline(r *recipe.Recipe) string {
	return fmt.Sprintf(commonCmdline, serialConsole[r.Architecture]) + " turnout.mode=installer"
}

// osRelease returns the .osrel section. systemd-boot sorts entries by sort
// key and version first; both are the same in every image, so that only the
// generation in the file name orders the slots.
func osRelease(label string) string {
	quoted := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`, "`", "\\`", "\n", " ").Replace(label)
	return "ID=turnout\nIMAGE_ID=turnout\nIMAGE_VERSION=1\nVERSION_ID=1\nPRETTY_NAME=\"Turnout " + quoted + "\"\n"
}

// ukiParts are what one UKI is made from.
type ukiParts struct {
	stub, kernel, initrd []byte
	label, cmdline       string
	release              string
}

// buildUKI appends the sections in systemd's customary order: the kernel
// last, since it may need the memory after it to unpack.
func buildUKI(p ukiParts) ([]byte, error) {
	if !bytes.HasPrefix(p.kernel, []byte("MZ")) {
		return nil, fmt.Errorf("kernel %s is not an EFI program; it must be built with an EFI stub", p.release)
	}
	return uki.Build(p.stub, []uki.Section{
		{Name: ".osrel", Data: []byte(osRelease(p.label))},
		{Name: ".cmdline", Data: []byte(p.cmdline)},
		{Name: ".uname", Data: []byte(p.release)},
		{Name: ".initrd", Data: p.initrd},
		{Name: ".linux", Data: p.kernel},
	})
}
