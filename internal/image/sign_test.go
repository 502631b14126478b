package image

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/secureboot"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// Every program that firmware starts is signed before it is measured.
func TestSign(t *testing.T) {
	loader, err := os.ReadFile("/usr/lib/systemd/boot/efi/systemd-bootx64.efi")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	plain := func() *parts { return &parts{uki: loader, installer: loader, loader: loader} }
	p := plain()
	if err := new(build).sign(p); err != nil || !cmp.Equal(p.loader, loader) {
		t.Errorf("without a key: %v; want nothing changed", err)
	}
	keys, err := secureboot.Generate("test")
	if err != nil {
		t.Fatal(err)
	}
	b := &build{Options: Options{Boot: keys.DB}}
	if err := b.sign(p); err != nil {
		t.Fatal(err)
	}
	padded := append(bytes.Clone(loader), make([]byte, (8-len(loader)%8)%8)...)
	want, err := measure.Authenticode(padded)
	if err != nil {
		t.Fatal(err)
	}
	for what, pe := range map[string][]byte{"UKI": p.uki, "installer": p.installer, "loader": p.loader} {
		got, err := measure.Authenticode(pe)
		if err != nil || !cmp.Equal(want, got) || len(pe) <= len(padded) {
			t.Errorf("%s: %d bytes, %v; want %d bytes and a signature\n%s", what, len(pe), err, len(padded), cmp.Diff(want, got))
		}
	}
	if err := b.sign(p); err == nil {
		t.Error("signed again")
	}
}
