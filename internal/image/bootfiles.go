package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/turnout-project/turnout/internal/deb"
)

// efiDir is where package systemd-boot-efi keeps its programs.
const efiDir = "usr/lib/systemd/boot/efi"

// efiSuffix maps an architecture to the name UEFI gives it in file names
// (UEFI specification, section 3.5.1.1).
var efiSuffix = map[string]string{"amd64": "x64", "arm64": "aa64"}

// bootFiles are the EFI programs an image is made with.
type bootFiles struct {
	stub   []byte
	loader []byte // systemd-boot
}

// readBootFiles takes stub and loader out of the package systemd-boot-efi.
func readBootFiles(ctx context.Context, debPath, architecture string) (bootFiles, error) {
	suffix, ok := efiSuffix[architecture]
	if !ok {
		return bootFiles{}, fmt.Errorf("architecture %q: no EFI stub is known for it", architecture)
	}
	var b bootFiles
	want := map[string]*[]byte{
		path.Join(efiDir, "linux"+suffix+".efi.stub"):   &b.stub,
		path.Join(efiDir, "systemd-boot"+suffix+".efi"): &b.loader,
	}
	err := walkDeb(ctx, debPath, func(e deb.Entry, content io.Reader) error {
		to, ok := want[e.Name]
		if !ok || e.Type != deb.File {
			return nil
		}
		var err error
		*to, err = io.ReadAll(content)
		return err
	})
	if err != nil {
		return bootFiles{}, err
	}
	for name, to := range want {
		if len(*to) == 0 {
			return bootFiles{}, fmt.Errorf("%s: has no file %s; the lock's tools need systemd-boot-efi for %s", debPath, name, architecture)
		}
	}
	return b, nil
}

// kernelRelease returns the release (uname -r) of the kernel in a package: the
// end of the name of /boot/vmlinuz-<release>.
func kernelRelease(ctx context.Context, debPath string) (string, error) {
	errFound := errors.New("found")
	var release string
	err := walkDeb(ctx, debPath, func(e deb.Entry, _ io.Reader) error {
		if r, ok := strings.CutPrefix(e.Name, "boot/vmlinuz-"); ok && e.Type == deb.File {
			release = r
			return errFound
		}
		return nil
	})
	if err != nil && !errors.Is(err, errFound) {
		return "", err
	}
	if release == "" {
		return "", fmt.Errorf("%s: has no /boot/vmlinuz-<release>", debPath)
	}
	return release, nil
}

func walkDeb(ctx context.Context, debPath string, fn func(deb.Entry, io.Reader) error) error {
	p, err := deb.Open(debPath, deb.Options{})
	if err != nil {
		return err
	}
	return errors.Join(p.Walk(ctx, fn), p.Close())
}
