package cve

import (
	"archive/zip"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/lock"
)

// The packages of a small bookworm system.
var packages = []lock.Package{
	{Name: "base-files", Version: "12.4+deb12u13"},
	{Name: "libc6", Version: "2.36-9+deb12u10", Source: "glibc"},
	{Name: "libc-bin", Version: "2.36-9+deb12u10", Source: "glibc"},
	{Name: "linux-image-6.1.0-50-amd64", Version: "6.1.176-1", Source: "linux-signed-amd64", SourceVersion: "6.1.176+1"},
	{Name: "libgcc-s1", Version: "12.2.0-14+deb12u1", Source: "gcc-12"},
	{Name: "libzstd1", Version: "1.5.4+dfsg2-5+b1", Source: "libzstd"},
	{Name: "dmsetup", Version: "2:1.02.185-2", Source: "lvm2", SourceVersion: "2.03.16-2"},
}

const tracker = `{
 "glibc": {
  "CVE-2025-4802": {"scope": "local", "description": "Untrusted LD_LIBRARY_PATH", "releases": {
    "bookworm": {"status": "resolved", "repositories": {"bookworm": "2.36-9+deb12u10"}, "fixed_version": "2.36-9+deb12u11", "urgency": "not yet assigned"},
    "sid": {"status": "resolved", "fixed_version": "2.39-4", "urgency": "not yet assigned"}}},
  "CVE-2024-2961": {"description": "iconv overflow", "releases": {"bookworm": {"status": "resolved", "fixed_version": "2.36-9+deb12u6", "urgency": "high"}}},
  "CVE-2010-4756": {"description": "glob", "debianbug": 681888, "releases": {"bookworm": {"status": "open", "urgency": "unimportant", "nodsa": "Minor issue"}}},
  "CVE-2099-0001": {"description": "trixie only", "releases": {"trixie": {"status": "open", "urgency": "high"}}}
 },
 "linux": {
  "CVE-2026-0001": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "6.1.192-1", "urgency": "high"}}},
  "CVE-2026-0002": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "6.1.176-1", "urgency": "high"}}},
  "CVE-2026-0003": {"releases": {"bookworm": {"status": "open", "urgency": "low"}}},
  "CVE-2026-0004": {"releases": {"bookworm": {"status": "undetermined", "urgency": "medium"}}},
  "CVE-2026-0005": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "0", "urgency": "high"}}}
 },
 "libzstd": {"CVE-2022-4899": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "1.5.4+dfsg2-5", "urgency": "low"}}}},
 "lvm2": {"CVE-2027-0001": {"releases": {"bookworm": {"status": "resolved", "fixed_version": "2.03.16-1", "urgency": "low"}}}},
 "openssh": {"CVE-2024-6387": {"releases": {"bookworm": {"status": "open", "urgency": "high"}}}}
}`

const osv = `{"vulns": [
 {"id": "DEBIAN-CVE-2025-4802", "upstream": ["CVE-2025-4802"], "summary": "Untrusted LD_LIBRARY_PATH", "affected": [
   {"package": {"ecosystem": "Debian:12", "name": "glibc"}, "ecosystem_specific": {"urgency": "not yet assigned"},
    "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.36-9+deb12u11"}]}]},
   {"package": {"ecosystem": "Debian:13", "name": "glibc"}, "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}]},
 {"id": "CVE-2024-2961", "affected": [{"package": {"ecosystem": "Debian:12", "name": "glibc"},
   "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "2.36-9+deb12u6"}]}]}]},
 {"id": "CVE-2026-0003", "affected": [{"package": {"ecosystem": "Debian:12", "name": "linux"},
   "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "6.1.1-1"}, {"last_affected": "6.1.200-1"}]}]}]},
 {"id": "CVE-2026-0006", "affected": [{"package": {"ecosystem": "Debian:12", "name": "linux"},
   "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "6.1.180-1"}]}]}]},
 {"id": "CVE-2026-0007", "affected": [{"package": {"ecosystem": "Debian:12", "name": "gcc-12"}, "versions": ["12.2.0-14+deb12u1"]}]},
 {"id": "CVE-2026-0008", "withdrawn": "2026-01-01T00:00:00Z", "affected": [{"package": {"ecosystem": "Debian:12", "name": "linux"},
   "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}]},
 {"id": "GHSA-1", "aliases": ["CVE-2026-0009"], "affected": [{"package": {"ecosystem": "PyPI", "name": "glibc"},
   "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}]}]}
]}`

func write(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "feed")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestTracker(t *testing.T) {
	got, err := Check(write(t, tracker), packages, Release(packages))
	if err != nil {
		t.Fatal(err)
	}
	kernel, libc := []string{"linux-image-6.1.0-50-amd64"}, []string{"libc6", "libc-bin"}
	want := []Finding{
		{ID: "CVE-2026-0001", Source: "linux", Version: "6.1.176-1", Fixed: "6.1.192-1", Urgency: "high", Status: Fixable, Packages: kernel},
		{ID: "CVE-2025-4802", Source: "glibc", Version: "2.36-9+deb12u10", Fixed: "2.36-9+deb12u11", Urgency: "not yet assigned", Status: Fixable, Packages: libc, Summary: "Untrusted LD_LIBRARY_PATH"},
		{ID: "CVE-2026-0004", Source: "linux", Version: "6.1.176-1", Urgency: "medium", Status: Open, Packages: kernel, Undecided: true},
		{ID: "CVE-2026-0003", Source: "linux", Version: "6.1.176-1", Urgency: "low", Status: Open, Packages: kernel},
		{ID: "CVE-2010-4756", Source: "glibc", Version: "2.36-9+deb12u10", Urgency: "unimportant", Status: Ignored, Packages: libc, Summary: "glob"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

func TestOSV(t *testing.T) {
	want := []Finding{
		{ID: "CVE-2025-4802", Source: "glibc", Version: "2.36-9+deb12u10", Fixed: "2.36-9+deb12u11", Urgency: "not yet assigned", Status: Fixable, Packages: []string{"libc6", "libc-bin"}, Summary: "Untrusted LD_LIBRARY_PATH"},
		{ID: "CVE-2026-0007", Source: "gcc-12", Version: "12.2.0-14+deb12u1", Status: Open, Packages: []string{"libgcc-s1"}},
		{ID: "CVE-2026-0003", Source: "linux", Version: "6.1.176-1", Status: Open, Packages: []string{"linux-image-6.1.0-50-amd64"}},
	}
	zipped := filepath.Join(t.TempDir(), "all.zip")
	f, err := os.Create(zipped)
	if err != nil {
		t.Fatal(err)
	}
	z := zip.NewWriter(f)
	w, err := z.Create("CVE.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(osv)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	list := osv[len(`{"vulns": `) : len(osv)-1]
	for name, feed := range map[string]string{"answer of a query": write(t, osv), "list": write(t, list), "zip": zipped} {
		got, err := Check(feed, packages, "bookworm")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: findings (-want +got):\n%s", name, diff)
		}
	}
}

func TestRange(t *testing.T) {
	r := osvRange{Type: "ECOSYSTEM", Events: []osvEvent{{Fixed: "1.5"}, {Introduced: "0"}, {Introduced: "2.0~rc1"}, {Fixed: "2.3"}}}
	for version, want := range map[string]string{"0.1": "1.5", "1.5": "", "1.9": "", "2.0~rc1": "2.3", "2.0~beta": "", "2.3": "", "1:0.1": ""} {
		fixed, affected := r.judge(version)
		if fixed != want && affected || affected != (want != "") {
			t.Errorf("%s: affected %v, fixed in %q; want %q", version, affected, fixed, want)
		}
	}
}

// A feed that is not what it should be must never look like good news.
func TestFeedRefused(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "text": "CVE-2024-1", "cut short": tracker[:len(tracker)-3], "cut in an entry": tracker[:700],
		"other release": `{"glibc": {"CVE-1": {"releases": {"buster": {"status": "open"}}}}}`, "empty object": "{}",
		"entry without id": `[{"affected": []}]`, "empty zip": "PK\x03\x04", "another shape": `{"glibc": {"CVE-1": []}}`,
	} {
		if got, err := Check(write(t, text), packages, "bookworm"); !errors.Is(err, ErrFeed) {
			t.Errorf("%s: Check = %v, %v; want %v", name, got, err, ErrFeed)
		}
	}
	if _, err := Check(filepath.Join(t.TempDir(), "missing"), packages, "bookworm"); !errors.Is(err, ErrFeed) {
		t.Errorf("missing: %v", err)
	}
}

func TestRelease(t *testing.T) {
	for version, want := range map[string]string{"12.4+deb12u13": "bookworm", "13": "trixie", "13.8+deb13u1": "trixie", "9.9": "", "": ""} {
		if got := Release([]lock.Package{{Name: "base-files", Version: version}}); got != want {
			t.Errorf("Release of base-files %q = %q; want %q", version, got, want)
		}
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte(tracker))
	f.Add([]byte(osv))
	f.Add([]byte("PK\x03\x04"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, raw []byte) {
		name := filepath.Join(dir, "feed")
		if err := os.WriteFile(name, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Check(name, packages, "bookworm"); err != nil && !errors.Is(err, ErrFeed) {
			t.Errorf("Check = %v; want one of %v", err, ErrFeed)
		}
	})
}
