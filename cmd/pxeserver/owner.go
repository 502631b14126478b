package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/turnout-project/turnout/internal/config"
)

// serviceUser is the user as which the packaged unit runs the server.
const serviceUser = "turnout"

// giveToService lets the service's user read and write what it needs, where
// there is such a user and this is root: the folder of the state and the
// tokens. It says whether it did.
func giveToService(c *config.Config) (bool, error) {
	if os.Geteuid() != 0 {
		return false, nil
	}
	u, err := user.Lookup(serviceUser)
	var unknown user.UnknownUserError
	if errors.As(err, &unknown) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("user %s: %w", serviceUser, err)
	}
	uid, err1 := strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	if err := errors.Join(err1, err2); err != nil {
		return false, fmt.Errorf("user %s: %w", serviceUser, err)
	}
	return true, give(c, uid, gid)
}

// giveTree gives a folder and all in it to a user.
func giveTree(dir string, uid, gid int) error {
	return filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, uid, gid)
	})
}

// keepOwner gives what root wrote to the owner of the data folder, so that a
// server that does not run as root can use it.
func keepOwner(c *config.Config) error {
	st, err := os.Stat(c.DataDir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok || os.Geteuid() != 0 || sys.Uid == 0 {
		return nil
	}
	return give(c, int(sys.Uid), int(sys.Gid))
}

// give gives a user the data folder, and its group the tokens to read.
func give(c *config.Config, uid, gid int) error {
	if err := giveTree(c.DataDir, uid, gid); err != nil {
		return err
	}
	return errors.Join(os.Chown(c.Tokens, 0, gid), os.Chmod(c.Tokens, 0o640))
}
