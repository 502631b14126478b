package image

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/manifest"
)

var policyManifest = &manifest.Manifest{Name: "demo", Version: "1", Kernel: manifest.Kernel{Release: "6.1.0-50-amd64"}}

// goodRoot writes the parts of a root that Policy looks at.
func goodRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	pub, err := manifest.MarshalPublicKey(ed25519.NewKeyFromSeed(bytes.Repeat([]byte{2}, 32)).Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	trust, err := json.Marshal(manifest.Trust{ImageKeys: string(pub)})
	if err != nil {
		t.Fatal(err)
	}
	id, err := json.Marshal(manifest.Identity{Name: "demo", Version: "1", Kernel: policyManifest.Kernel})
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"var/lib/dpkg/status":                                     "Package: kmod\nStatus: install ok installed\n\nPackage: apt\nStatus: install ok installed\n",
		"usr/lib/systemd/system/apt-daily.timer":                  "[Timer]\n",
		"etc/machine-id":                                          "",
		"etc/shadow":                                              "root:*:1::::::\nops:!:1::::::\n",
		"usr/lib/modules/6.1.0-50-amd64/modules.dep":              "",
		"etc/systemd/system/multi-user.target.wants/" + agentUnit: "",
		"etc/systemd/system/multi-user.target.wants/" + guardUnit: "",
		agentPath:          "\x7fELF",
		manifest.TrustPath: string(trust),
		manifest.ImagePath: string(id),
	} {
		write(t, filepath.Join(root, name), text)
	}
	if err := os.Symlink("/dev/null", filepath.Join(root, "etc/systemd/system/apt-daily.timer")); err != nil {
		t.Fatal(err)
	}
	return root
}

func TestPolicy(t *testing.T) {
	put := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, root string) { write(t, filepath.Join(root, name), text) }
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, root string) {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	tests := []struct {
		name   string
		change func(*testing.T, string)
		want   string // of the one fault; "" for none
	}{
		{"good", func(*testing.T, string) {}, ""},
		{"unattended upgrades", put("var/lib/dpkg/status", "Package: unattended-upgrades\nStatus: install ok installed\n"), "package unattended-upgrades"},
		{"reports", put("var/lib/dpkg/status", "Package: popularity-contest\nStatus: install ok installed\n"), "popularity-contest is installed: it sends reports"},
		{"ssh host key", put("etc/ssh/ssh_host_ed25519_key", "x"), "ssh-host-key"},
		{"machine-id", put("etc/machine-id", "0123456789abcdef0123456789abcdef\n"), "machine-id"},
		{"setuid", func(t *testing.T, root string) {
			write(t, filepath.Join(root, "usr/bin/python3"), "x")
			if err := os.Chmod(filepath.Join(root, "usr/bin/python3"), 0o755|os.ModeSetuid); err != nil {
				t.Fatal(err)
			}
		}, "setuid"},
		{"half configured", put("var/lib/dpkg/status", "Package: kmod\nStatus: install ok half-configured\n"), "kmod is not configured"},
		{"no database", remove("var/lib/dpkg/status"), "no package database"},
		{"timer not masked", remove("etc/systemd/system/apt-daily.timer"), "apt-daily.timer: this unit can run"},
		{"timer of fwupd", put("usr/lib/systemd/system/fwupd-refresh.timer", ""), "fwupd-refresh.timer"},
		{"cron", put("etc/cron.weekly/apt-listchanges", ""), "/etc/cron.weekly/apt-listchanges would run"},
		{"compiler", put("usr/bin/gcc-12", ""), "no compiler"},
		{"kernel hook", put("etc/kernel/postinst.d/initramfs-tools", ""), "/etc/kernel/postinst.d/initramfs-tools"},
		{"second kernel", put("usr/lib/modules/6.1.0-57-amd64/modules.dep", ""), "[6.1.0-50-amd64 6.1.0-57-amd64]"},
		{"no kernel", remove("usr/lib/modules/6.1.0-50-amd64/modules.dep"), "kernels []"},
		{"password", put("etc/shadow", "root:$6$abc:1::::::\n"), `account "root"`},
		{"empty password", put("etc/shadow", "root::1::::::\n"), `account "root"`},
		{"no agent", remove(agentPath), agentPath},
		{"agent not enabled", remove("etc/systemd/system/multi-user.target.wants/" + agentUnit), "not enabled"},
		{"trust", put(manifest.TrustPath, "{}"), manifest.TrustPath},
		{"identity", put(manifest.ImagePath, `{"name":"demo","version":"2"}`), manifest.ImagePath},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := goodRoot(t)
			tt.change(t, root)
			faults, err := Policy(root, policyManifest)
			if err != nil {
				t.Fatal(err)
			}
			got := strings.Join(faults, "\n")
			if tt.want == "" && got != "" || len(faults) > 1 || !strings.Contains(got, tt.want) {
				t.Errorf("Policy = %q; want one fault with %q", got, tt.want)
			}
		})
	}
}
