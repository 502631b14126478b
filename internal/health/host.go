package health

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrUnknown is wrapped by the error of a check of the host that cannot tell.
var ErrUnknown = errors.New("cannot tell")

// Links reports whether the named network interfaces, or without names all
// physical ones, are there and have a carrier. root is put before /sys.
func Links(root string, names ...string) (string, error) {
	dir := filepath.Join("/", root, "sys/class/net")
	if len(names) == 0 {
		devices, err := filepath.Glob(filepath.Join(dir, "*", "device"))
		if err != nil || len(devices) == 0 {
			return "", fmt.Errorf("expected network interfaces, seen none")
		}
		for _, d := range devices {
			names = append(names, filepath.Base(filepath.Dir(d)))
		}
	}
	for _, n := range names {
		b, err := os.ReadFile(filepath.Join(dir, filepath.Base(n), "operstate"))
		switch state := strings.TrimSpace(string(b)); {
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("network interface %s: expected up, seen absent", n)
		case err != nil:
			return "", fmt.Errorf("%w: %w", ErrUnknown, err)
		case state == "unknown": // drivers that do not say
			return "", fmt.Errorf("%w: the driver of network interface %s does not say whether it is up", ErrUnknown, n)
		case state != "up":
			return "", fmt.Errorf("network interface %s: expected up, seen %s", n, state)
		}
	}
	return "up: " + strings.Join(names, ", "), nil
}

// Space reports whether the file system at path can be written and has at
// least percent of its blocks and inodes free.
func Space(path string, percent int) (string, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "", fmt.Errorf("%w: %s: %w", ErrUnknown, path, err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return "", fmt.Errorf("%s: expected writable, seen read-only: the kernel found its disk or file system damaged, or it was mounted so", path)
	}
	for _, x := range []struct {
		what        string
		free, total uint64
	}{{"space", st.Bavail, st.Blocks}, {"inodes", st.Ffree, st.Files}} {
		if x.total > 0 && x.free*100 < x.total*uint64(percent) {
			return "", fmt.Errorf("%s: expected %d %% of %s free, seen %d %%", path, percent, x.what, x.free*100/x.total)
		}
	}
	return fmt.Sprintf("%s: %d %% free", path, st.Bavail*100/max(st.Blocks, 1)), nil
}

// Clock reports whether the kernel's clock is synchronised and not before
// earliest, as where a battery is empty.
func Clock(now, earliest time.Time, isSynchronised bool) (string, error) {
	switch {
	case now.Before(earliest):
		return "", fmt.Errorf("clock: expected after %s, seen %s", earliest.Format(time.DateOnly), now.Format(time.DateOnly))
	case !isSynchronised:
		return "", errors.New("clock: expected synchronised, seen running free: is the time server reached?")
	}
	return "synchronised, " + now.UTC().Format(time.RFC3339), nil
}

// IsSynchronised asks the kernel whether somebody keeps its clock: adjtimex(2).
func IsSynchronised() (bool, error) {
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != unix.TIME_ERROR, err
}
