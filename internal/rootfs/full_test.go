package rootfs

import (
	"archive/tar"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// TestDiskFull: a full disk is named as such, with the package and the file
// at which it was full, and nothing keeps the disk busy afterwards.
func TestDiskFull(t *testing.T) {
	p := debtest.Package{Name: "big", Data: []tar.Header{debtest.Dir("./usr/share/"), debtest.File("./usr/share/large", 0o644)},
		Contents: map[string]string{"./usr/share/large": strings.Repeat("0123456789abcde\n", 256<<10)}}
	b := newBuild(t, nil, p)
	if err := unix.Mount("none", b.dir, "tmpfs", 0, "size=1m"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no tmpfs here: %v", err)
	}
	b.tree.Close()
	var err error
	if b.tree, err = tree.Open(b.dir); err != nil {
		t.Fatal(err)
	}
	err = b.unpack(t.Context())
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "package big") || !strings.Contains(err.Error(), "usr/share/large") {
		t.Errorf("unpack = %v; want %v, the package and the file", err, unix.ENOSPC)
	}
	b.close()
	if err := unix.Unmount(b.dir, 0); err != nil {
		t.Errorf("the disk is still in use: %v", err)
		_ = unix.Unmount(b.dir, unix.MNT_DETACH)
	}
}
