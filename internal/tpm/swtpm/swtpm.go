// Package swtpm runs software TPMs for tests. Nothing else may import it.
package swtpm

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TPM is a running software TPM.
type TPM struct {
	Socket string // Unix socket that speaks the raw TPM protocol
	CA     string // folder of the certificates of the authority that made its EK certificates, "" without Provision
	state  string
	cmd    *exec.Cmd
}

// Start runs a new TPM with all banks active and without EK certificates. It
// is stopped when the test ends.
func Start(tb testing.TB) *TPM {
	tb.Helper()
	t := newTPM(tb)
	t.run(tb)
	return t
}

// Provision is Start for a TPM as it leaves a factory: with EK certificates
// and only the given PCR banks active.
func Provision(tb testing.TB, banks ...string) *TPM {
	tb.Helper()
	need(tb, "swtpm_setup")
	t := newTPM(tb)
	t.CA = tb.TempDir()
	files := map[string]string{
		"setup.conf": fmt.Sprintf("create_certs_tool=/usr/bin/swtpm_localca\ncreate_certs_tool_config=%s/ca.conf\ncreate_certs_tool_options=%s/ca.options\n", t.CA, t.CA),
		"ca.conf":    fmt.Sprintf("statedir=%s\nsigningkey=%s/signkey.pem\nissuercert=%s/issuercert.pem\ncertserial=%s/certserial\n", t.CA, t.CA, t.CA, t.CA),
		"ca.options": "--platform-manufacturer Turnout\n--platform-version 1\n--platform-model test\n",
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(t.CA, name), []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	cmd := exec.CommandContext(tb.Context(), "swtpm_setup", "--tpm2", "--tpmstate", t.state, "--config", filepath.Join(t.CA, "setup.conf"),
		"--create-ek-cert", "--create-platform-cert", "--pcr-banks", strings.Join(banks, ","), "--lock-nvram")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("swtpm_setup: %v\n%s", err, out)
	}
	t.run(tb)
	return t
}

func newTPM(tb testing.TB) *TPM {
	tb.Helper()
	need(tb, "swtpm")
	// Paths of sockets are short: tb.TempDir may be too long.
	dir, err := os.MkdirTemp("", "swtpm")
	if err != nil {
		tb.Fatal(err)
	}
	t := &TPM{Socket: filepath.Join(dir, "s"), state: dir}
	tb.Cleanup(func() {
		t.stop()
		os.RemoveAll(dir) //nolint:errcheck // a temporary folder
	})
	return t
}

// run starts the process and waits for its socket.
func (t *TPM) run(tb testing.TB) {
	tb.Helper()
	t.cmd = exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+t.state,
		"--server", "type=unixio,path="+t.Socket, "--ctrl", "type=unixio,path="+t.Socket+".ctrl",
		"--flags", "not-need-init,startup-clear")
	if err := t.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if c, err := net.Dial("unix", t.Socket); err == nil {
			c.Close() //nolint:errcheck // only tried
			return
		}
		if time.Now().After(deadline) {
			tb.Fatal("swtpm did not open its socket within 20 s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (t *TPM) stop() {
	if t.cmd == nil || t.cmd.Process == nil {
		return
	}
	t.cmd.Process.Kill() //nolint:errcheck // it may have ended
	t.cmd.Wait()         //nolint:errcheck // killed
	os.Remove(t.Socket)  //nolint:errcheck // made anew
}

// Reset turns the TPM off and on, as a power cycle of its machine does. Open
// connections end.
func (t *TPM) Reset(tb testing.TB) {
	tb.Helper()
	t.stop()
	t.run(tb)
}

// need skips the test, or fails it where CI is set, if a program is missing.
func need(tb testing.TB, program string) {
	tb.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("CI") != "" {
			tb.Fatalf("%v; install swtpm and swtpm-tools", err)
		}
		tb.Skipf("%v; install swtpm and swtpm-tools", err)
	}
}
