package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/recipe"
)

// apply puts in what the recipe and the caller add to the packages.
func (b *build) apply(context.Context) error {
	if err := b.addUsers(); err != nil {
		return err
	}
	files, err := recipeFiles(b.Recipe)
	if err != nil {
		return err
	}
	for _, f := range slices.Concat(files, b.settings(), b.ExtraFiles) {
		if err := b.addFile(f); err != nil {
			return fmt.Errorf("file %q: %w", f.Path, err)
		}
	}
	for _, unit := range slices.Concat(updaters, b.Recipe.Services.Mask) {
		if err := b.maskUnit(unit); err != nil {
			return err
		}
	}
	for _, unit := range slices.Concat(b.Recipe.Services.Enable, b.EnableUnits) {
		if err := b.enableUnit(unit); err != nil {
			return err
		}
	}
	return nil
}

// recipeFiles turns a recipe's files into ours.
func recipeFiles(r *recipe.Recipe) ([]File, error) {
	var files []File
	for _, f := range r.Files {
		file := File{Path: f.Path, Content: []byte(f.Content), Source: f.Source, Link: f.Link, Owner: f.Owner, Dir: strings.HasSuffix(f.Path, "/")}
		if f.Mode != "" {
			mode, err := strconv.ParseUint(f.Mode, 8, 12)
			if err != nil {
				return nil, fmt.Errorf("%w: file %q: mode %q is not octal", ErrSpec, f.Path, f.Mode)
			}
			file.Mode = fromBits(uint32(mode))
		}
		files = append(files, file)
	}
	return files, nil
}

// fromBits is the inverse of tree.Bits.
func fromBits(bits uint32) fs.FileMode {
	m := fs.FileMode(bits & 0o777)
	for bit, flag := range map[uint32]fs.FileMode{0o4000: fs.ModeSetuid, 0o2000: fs.ModeSetgid, 0o1000: fs.ModeSticky} {
		if bits&bit != 0 {
			m |= flag
		}
	}
	return m
}

// settings are the files that a recipe's short forms stand for.
func (b *build) settings() []File {
	const head = "# Written by imgbuild from the recipe.\n"
	files := []File{{Path: "/etc/apt/apt.conf.d/99turnout-no-updates", Content: []byte(
		"// The image is replaced as a whole; nothing updates it in place.\nAPT::Periodic::Enable \"0\";\nAPT::Periodic::Unattended-Upgrade \"0\";\n")}}
	if len(b.Recipe.Sysctl) > 0 {
		var text strings.Builder
		text.WriteString(head)
		for _, key := range slices.Sorted(maps.Keys(b.Recipe.Sysctl)) {
			fmt.Fprintf(&text, "%s = %s\n", key, b.Recipe.Sysctl[key])
		}
		files = append(files, File{Path: "/etc/sysctl.d/50-turnout.conf", Content: []byte(text.String())})
	}
	if len(b.Recipe.Modprobe) > 0 {
		files = append(files, File{Path: "/etc/modprobe.d/50-turnout.conf", Content: []byte(head + strings.Join(b.Recipe.Modprobe, "\n") + "\n")})
	}
	return files
}

// addFile puts one file into the tree.
func (b *build) addFile(f File) error {
	name := strings.Trim(f.Path, "/")
	if name == "" || !strings.HasPrefix(f.Path, "/") {
		return fmt.Errorf("%w: the path is not absolute", ErrSpec)
	}
	uid, gid, err := b.owner(f.Owner)
	if err != nil {
		return err
	}
	mode := f.Mode
	switch {
	case f.Dir:
		if mode == 0 {
			mode = 0o755
		}
		if err := b.tree.MkdirAll(name, 0o755); err != nil {
			return err
		}
		// The owner first: changing it clears setuid and setgid.
		if err := b.tree.Lchown(name, uid, gid); err != nil {
			return err
		}
		return b.tree.Chmod(name, mode)
	case f.Link != "":
		if err := b.tree.Symlink(f.Link, name); err != nil {
			return err
		}
		return b.tree.Lchown(name, uid, gid)
	}
	content := f.Content
	if f.Source != "" {
		if content, err = os.ReadFile(f.Source); err != nil {
			return err
		}
	}
	if mode == 0 {
		mode = 0o644
	}
	if err := b.tree.WriteFile(name, content, mode.Perm()); err != nil {
		return err
	}
	if err := b.tree.Lchown(name, uid, gid); err != nil {
		return err
	}
	return b.tree.Chmod(name, mode)
}

// owner resolves "user:group" by the tree's own accounts.
func (b *build) owner(s string) (uid, gid int, err error) {
	if s == "" {
		return 0, 0, nil
	}
	user, group, ok := strings.Cut(s, ":")
	if !ok {
		group = user
	}
	if uid, err = b.lookUp("etc/passwd", user); err != nil {
		return 0, 0, err
	}
	gid, err = b.lookUp("etc/group", group)
	return uid, gid, err
}

// lookUp finds a number by name in a file of the form name:x:number:…
func (b *build) lookUp(file, name string) (int, error) {
	if n, err := strconv.Atoi(name); err == nil && n >= 0 {
		return n, nil
	}
	text, err := b.tree.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 2 && f[0] == name {
			return strconv.Atoi(f[2])
		}
	}
	return 0, fmt.Errorf("%w: no %q in the image's /%s", ErrSpec, name, file)
}

// addUsers adds the recipe's accounts, all without a password.
func (b *build) addUsers() error {
	for _, u := range b.Recipe.Users {
		if err := b.addUser(u); err != nil {
			return fmt.Errorf("user %q: %w", u.Name, err)
		}
	}
	return nil
}

func (b *build) addUser(u recipe.User) error {
	if _, err := b.lookUp("etc/passwd", u.Name); err == nil {
		return fmt.Errorf("%w: it is an account of a package already", ErrSpec)
	}
	for _, field := range []string{u.Name, u.Shell, u.Home} {
		if strings.ContainsAny(field, ":\n\x00") {
			return fmt.Errorf("%w: %q cannot be in /etc/passwd", ErrSpec, field)
		}
	}
	shell, home := u.Shell, u.Home
	if shell == "" {
		shell = "/usr/sbin/nologin"
	}
	if home == "" {
		home = "/nonexistent"
	}
	for _, add := range []struct{ file, line string }{
		{"etc/passwd", fmt.Sprintf("%s:x:%d:%d::%s:%s", u.Name, u.UID, u.UID, home, shell)},
		{"etc/shadow", fmt.Sprintf("%s:!:%d:0:99999:7:::", u.Name, b.SourceDateEpoch/86400)},
		{"etc/group", fmt.Sprintf("%s:x:%d:", u.Name, u.UID)},
		{"etc/gshadow", fmt.Sprintf("%s:!::", u.Name)},
	} {
		if err := b.appendLine(add.file, add.line); err != nil {
			return err
		}
	}
	for _, g := range u.Groups {
		if err := b.join(u.Name, g); err != nil {
			return err
		}
	}
	if home == "/nonexistent" || b.tree.Exists(home) {
		return nil
	}
	return b.addFile(File{Path: home, Dir: true, Mode: 0o700, Owner: fmt.Sprintf("%d:%d", u.UID, u.UID)})
}

func (b *build) appendLine(file, line string) error {
	text, err := b.tree.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(file, "shadow") {
		return nil // an image without shadow passwords
	}
	if err != nil {
		return err
	}
	return b.tree.Update(file, append(text, line+"\n"...))
}

// join makes a user a member of a group.
func (b *build) join(user, group string) error {
	if _, err := b.lookUp("etc/group", group); err != nil {
		return err
	}
	for _, file := range []string{"etc/group", "etc/gshadow"} {
		text, err := b.tree.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var out strings.Builder
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, group+":") {
				line = strings.TrimSuffix(line, "\n")
				if !strings.HasSuffix(line, ":") {
					line += ","
				}
				line += user + "\n"
			}
			out.WriteString(line)
		}
		if err := b.tree.Update(file, []byte(out.String())); err != nil {
			return err
		}
	}
	return nil
}
