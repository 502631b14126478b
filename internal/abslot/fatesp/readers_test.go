package fatesp_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
)

// readers are programs of others that read what a cut left: mtools and
// fsck.vfat the ESP, sgdisk the disk that it lies on.
type readers struct {
	t         *testing.T
	tools     map[string]string // path by name; what is missing here fails in CI
	esp, disk string            // files
	at        int64             // of the ESP on the disk
	states    int
}

func newReaders(t *testing.T) *readers {
	t.Helper()
	dir := t.TempDir()
	r := &readers{t: t, tools: map[string]string{}, esp: filepath.Join(dir, "esp.img"), disk: filepath.Join(dir, "disk.img")}
	for _, name := range []string{"mdir", "mcopy", "fsck.vfat", "sgdisk"} {
		bin, err := exec.LookPath(name)
		if err != nil && os.Getenv("CI") != "" {
			t.Errorf("%s is not installed", name)
		}
		r.tools[name] = bin
	}
	const diskSize = 3 * disk.GiB
	for path, n := range map[string]int64{r.esp: size, r.disk: diskSize} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, n); err != nil {
			t.Fatal(err)
		}
	}
	l, err := disk.Plan(disk.Geometry{SizeBytes: diskSize, SectorSize: 512}, disk.Want{RootBytes: 100 * disk.MiB, UKIBytes: disk.MiB, ESPBytes: 300 * disk.MiB})
	if err == nil {
		err = disk.Create(context.Background(), r.disk, l, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Partition(disk.LabelESP)
	if err != nil {
		t.Fatal(err)
	}
	r.at = p.StartBytes
	return r
}

// run runs one of the programs; out is "" and ok true where it is not here.
func (r *readers) run(name string, args ...string) (out string, ok bool) {
	if r.tools[name] == "" {
		return "", true
	}
	b, err := exec.Command(r.tools[name], args...).CombinedOutput()
	return string(b), err == nil
}

// check reads a state as it is, and then repaired as before each mount.
func (r *readers) check(where string, esp []byte) {
	t := r.t
	t.Helper()
	r.states++
	r.write(r.esp, 0, esp)
	r.write(r.disk, r.at, esp)
	if out, ok := r.run("mdir", "-i", r.esp, "-b", "::EFI/Linux"); !ok {
		t.Errorf("%s: mdir: %s", where, out)
	}
	if out, _ := r.run("sgdisk", "-v", r.disk); r.tools["sgdisk"] != "" && !strings.Contains(out, "No problems found") {
		t.Errorf("%s: sgdisk -v: %s", where, out)
	}
	if _, err := disk.RepairESP(r.esp, abslot.Folders[:], abslot.Keep); err != nil {
		t.Errorf("%s: %v", where, err)
	}
	out, _ := r.run("fsck.vfat", "-n", r.esp)
	for _, line := range r.harm(out) {
		t.Errorf("%s: fsck.vfat -n says %q in:\n%s", where, line, out)
	}
	names, ok := r.run("mdir", "-i", r.esp, "-b", "::EFI/Linux")
	if !ok {
		t.Errorf("%s: mdir: %s", where, names)
	}
	for name := range strings.FieldsSeq(names) { // each that could be started is read whole
		if strings.HasSuffix(name, ".efi") {
			if out, ok := r.run("mcopy", "-n", "-i", r.esp, name, filepath.Join(t.TempDir(), "uki")); !ok {
				t.Errorf("%s: mcopy %s: %s", where, name, out)
			}
		}
	}
}

// write writes the pages of b that are not what the file has there, so that
// files stay sparse.
func (r *readers) write(path string, at int64, b []byte) {
	r.t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	const page = 64 << 10
	was := make([]byte, page)
	for off := 0; off < len(b); off += page {
		n := b[off:min(off+page, len(b))]
		if _, err := f.ReadAt(was[:len(n)], at+int64(off)); err != nil {
			r.t.Fatal(err)
		}
		if !bytes.Equal(was[:len(n)], n) {
			if _, err := f.WriteAt(n, at+int64(off)); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

// What a cut may leave: space that belongs to nobody, two copies of the table
// of which the first counts, and a file without .efi that is not whole. No
// loader starts such a file, and the next installation writes it anew.
var (
	harmless = regexp.MustCompile(`^(fsck\.fat .*|FATs differ but appear to be intact\.|Using first FAT\.|Free cluster summary .*|Leaving filesystem unchanged\.|` +
		`Reclaimed \d+ unused clusters? .*|Reclaiming unconnected clusters\.|Dirty bit is set.*|Automatically removing dirty bit\.|Removing dirty bit\.|.*: \d+ files, \d+/\d+ clusters|)$`)
	unfinished = regexp.MustCompile(`^/(EFI/Linux/[0-9a-f]+\.(tmp|new|old)|turnout/.*)$`)
)

// harm returns the lines of fsck.vfat that tell of more than that. What is
// indented belongs to the line before.
func (r *readers) harm(out string) (lines []string) {
	isOf := ""
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, " ") && isOf != "" {
			if unfinished.MatchString(isOf) && !strings.Contains(line, "hare") { // shared clusters are harm everywhere
				continue
			}
			line = isOf + ": " + line
		} else if strings.HasPrefix(line, "/") && !strings.Contains(line, ": ") {
			isOf = line
			continue
		}
		if !strings.HasPrefix(line, "/") {
			isOf = ""
		}
		if !harmless.MatchString(strings.TrimSpace(line)) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestHarm: shared clusters and a damaged UKI are harm, an unfinished file is
// none.
func TestHarm(t *testing.T) {
	for out, want := range map[string]int{
		"fsck.fat 4.2 (2021-01-31)\nFATs differ but appear to be intact.\n  Using first FAT.\n/EFI/Linux/0123.tmp\n  Contains a free cluster (3). Assuming EOF.\n/tmp/x/esp.img: 3 files, 9/10 clusters\n": 0,
		"/EFI/Linux/g000001-0123.efi\n  Contains a free cluster (3). Assuming EOF.\n":                        1,
		"/EFI/Linux/0123.tmp and\n/EFI/Linux/0124.new\n  share clusters.\n  Truncating second to 0 bytes.\n": 1,
		"Cluster 7 is used by two files.\n": 1,
	} {
		if got := (*readers)(nil).harm(out); len(got) != want {
			t.Errorf("harm(%q) = %q, want %d lines", out, got, want)
		}
	}
}
