package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"

	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/packaging"
)

// writeUnit writes a systemd unit that runs this program with a
// configuration, where the Debian package has not installed one, and makes
// the user as which it runs.
func writeUnit(to, configFile string, c *config.Config) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := unit(exe, configFile, c)
	if err != nil {
		return err
	}
	if err := makeServiceUser(c.DataDir); err != nil {
		return err
	}
	return create(to, []byte(text), 0o644)
}

// unit is the packaged unit for another program, configuration and data
// folder.
func unit(exe, configFile string, c *config.Config) (string, error) {
	conf, err := filepath.Abs(configFile)
	if err != nil {
		return "", err
	}
	for _, p := range []string{exe, conf, c.DataDir} {
		if strings.ContainsAny(p, " \t\"'%\\") {
			return "", fmt.Errorf("systemd unit: the path %q has characters that a unit would have to quote; choose another", p)
		}
	}
	text := strings.ReplaceAll(packaging.ServerUnit, "/usr/bin/pxeserver", exe)
	text = strings.ReplaceAll(text, "/etc/turnout/pxeserver.yaml", conf)
	if c.DataDir != "/var/lib/turnout" {
		text = strings.Replace(text, "StateDirectory=turnout\nStateDirectoryMode=0750\n", "ReadWritePaths="+c.DataDir+"\n", 1)
	}
	return text, nil
}

// makeServiceUser makes the user turnout unless it is there.
func makeServiceUser(home string) error {
	_, err := user.Lookup(serviceUser)
	var unknown user.UnknownUserError
	if !errors.As(err, &unknown) {
		return err
	}
	out, err := exec.Command("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", home, "--shell", "/usr/sbin/nologin", serviceUser).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making the user %s: %w: %s", serviceUser, err, strings.TrimSpace(string(out)))
	}
	return nil
}
