package demo

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/turnout-project/turnout/internal/vmtest"
)

// versions are the demo's recipes: v2 changes the kernel, v3 adds a health
// check that fails, v4 never gets past early boot.
var versions = []string{"v1", "v2", "v3", "v4"}

// buildImages makes keys first (images carry the server's CA), then locks and
// builds every recipe.
func buildImages(ctx context.Context, l *lab) error {
	if err := l.makeKeys(ctx); err != nil {
		return err
	}
	for _, v := range versions {
		if err := l.buildImage(ctx, v); err != nil {
			return fmt.Errorf("image %s: %w", v, err)
		}
	}
	return nil
}

// makeKeys makes the key that signs images, and the server's own.
func (l *lab) makeKeys(ctx context.Context) error {
	if err := l.imgbuild(ctx, "keygen", "--out", l.path("keys")); err != nil {
		return err
	}
	args := []string{"init", "--dir", l.path("server"), "--address", vmtest.Address, "--interface", vmtest.Bridge,
		"--subnet", vmtest.Subnet, "--image-key", l.path("keys/image.pub"), "--heartbeat", "2s"}
	for _, root := range l.rack.EKRoots() {
		args = append(args, "--ek-root", root)
	}
	_, err := l.rack.Command(ctx, l.bin("pxeserver"), args...).Output()
	return commandError("pxeserver init", err)
}

func (l *lab) buildImage(ctx context.Context, v string) error {
	recipe := filepath.Join(l.Recipes, "demo", v+".yaml")
	lock := filepath.Join(l.Cache, "locks", v+".lock.json")
	if err := os.MkdirAll(filepath.Dir(lock), 0o755); err != nil {
		return err
	}
	if err := l.imgbuild(ctx, "lock", recipe, "--out", lock, "--store", l.store()); err != nil {
		return err
	}
	out := l.path("images/" + v)
	if err := l.imgbuild(ctx, "build", recipe, "--lock", lock, "--key", l.path("keys/image.key"),
		"--server-ca", l.path("server/ca.pem"), "--store", l.store(), "--nodeagent", l.bin("nodeagent"), "--out", out); err != nil {
		return err
	}
	digest, err := exec.CommandContext(ctx, l.bin("imgbuild"), "inspect", out, "--digest").Output()
	if err != nil {
		return commandError("imgbuild inspect", err)
	}
	l.digests[v] = strings.TrimSpace(string(digest))
	return nil
}

func (l *lab) store() string { return filepath.Join(l.Cache, "store") }

// imgbuild runs the builder, showing what it prints.
func (l *lab) imgbuild(ctx context.Context, args ...string) error {
	l.say("$ imgbuild %s", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, l.bin("imgbuild"), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return err
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		l.say("  %s", lines.Text())
	}
	return commandError("imgbuild "+args[0], cmd.Wait())
}

func commandError(what string, err error) error {
	if err == nil {
		return nil
	}
	if exit, ok := err.(*exec.ExitError); ok && len(exit.Stderr) > 0 {
		return fmt.Errorf("%s: %w: %s", what, err, bytes.TrimSpace(exit.Stderr))
	}
	return fmt.Errorf("%s: %w", what, err)
}
