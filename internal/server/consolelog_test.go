package server_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/server"
)

func TestConsoleLog(t *testing.T) {
	dir := t.TempDir()
	l := newLab(t, func(o *server.Options) { o.ConsoleLogs = filepath.Join(dir, "{node}.log") })
	for n := 1; n <= 2; n++ {
		l.ready(n, "rack", "sha256:"+strings.Repeat("1", 64))
	}
	_, err := l.op.ConsoleLog(ctx, "n1", 0)
	wantStatus(t, "a console nobody keeps", err, http.StatusNotFound)
	_, err = l.op.ConsoleLog(ctx, "nobody", 0)
	wantStatus(t, "the console of nobody", err, http.StatusNotFound)

	text := strings.Repeat("an early line\r\n", 5000) + "\x1b[2J\x1b[01;01H\x1b[0mBdsDxe: loading\r\n\x1b]0;title\x07[    0.00] Linux\x00\xff\r\nlast\r\n"
	l.must(os.WriteFile(filepath.Join(dir, "n1.log"), []byte(text), 0o600))
	got, err := l.op.ConsoleLog(ctx, "n1", 200)
	l.must(err)
	if !strings.HasSuffix(got.Text, "\nBdsDxe: loading\n[    0.00] Linux\nlast\n") || !strings.HasPrefix(got.Text, "an early line\n") ||
		len(got.Text) > 200 || got.Size != int64(len(text)) || got.Changed.IsZero() {
		t.Errorf("console log: %+v", got)
	}
	if got, err = l.op.ConsoleLog(ctx, "n1", 0); err != nil || len(got.Text) < 10_000 {
		t.Errorf("without a size: %d bytes, %v", len(got.Text), err)
	}
	_, err = l.op.ConsoleLog(ctx, "n1", 1<<30)
	wantStatus(t, "a gigabyte", err, http.StatusBadRequest)

	secret := filepath.Join(t.TempDir(), "secret")
	l.must(os.WriteFile(secret, []byte("s3cret"), 0o600))
	l.must(os.Symlink(secret, filepath.Join(dir, "n2.log")))
	if got, err := l.op.ConsoleLog(ctx, "n2", 0); err == nil {
		t.Errorf("a link out of the folder was followed: %q", got.Text)
	}
}

func TestConsoleLogsNotKept(t *testing.T) {
	l := newLab(t)
	l.ready(1, "rack", "sha256:"+strings.Repeat("1", 64))
	_, err := l.op.ConsoleLog(ctx, "n1", 0)
	if api.StatusOf(err) != http.StatusNotFound || !strings.Contains(err.Error(), "no console logs are kept") {
		t.Errorf("without console_logs: %v", err)
	}
}
