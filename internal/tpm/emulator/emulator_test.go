package emulator

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
)

// start runs a software TPM as for QEMU, and returns its control socket.
func start(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("swtpm"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "emulator")
	if err != nil {
		t.Fatal(err)
	}
	ctrl := filepath.Join(dir, "ctrl")
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--ctrl", "type=unixio,path="+ctrl, "--flags", "not-need-init,startup-clear")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); os.RemoveAll(dir) })
	for range 1000 {
		if _, err := os.Stat(ctrl); err == nil {
			return ctrl
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("swtpm did not open its socket")
	return ""
}

// What a machine extended is read after it has gone.
func TestReadPCRs(t *testing.T) {
	ctrl := start(t)
	machine, err := attach(ctrl)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256([]byte("kernel"))
	if _, err := (tpm2.PCRExtend{
		PCRHandle: tpm2.AuthHandle{Handle: 11, Auth: tpm2.PasswordAuth(nil)},
		Digests:   tpm2.TPMLDigestValues{Digests: []tpm2.TPMTHA{{HashAlg: tpm2.TPMAlgSHA256, Digest: digest[:]}}},
	}).Execute(&channel{machine}); err != nil {
		t.Fatal(err)
	}
	machine.Close() // QEMU is killed
	got, err := ReadPCRs(ctrl, "sha256", []int{4, 11, 12})
	if err != nil {
		t.Fatal(err)
	}
	want := sha256.Sum256(append(make([]byte, 32), digest[:]...))
	if hex.EncodeToString(got[11]) != hex.EncodeToString(want[:]) || len(got) != 3 || hex.EncodeToString(got[4]) != hex.EncodeToString(make([]byte, 32)) {
		t.Errorf("PCRs %x", got)
	}
	if again, err := ReadPCRs(ctrl, "sha256", []int{11}); err != nil || string(again[11]) != string(got[11]) {
		t.Errorf("read again: %x, %v", again, err)
	}
	if _, err := ReadPCRs(ctrl, "sha1", []int{11}); err == nil {
		t.Error("SHA-1 was read")
	}
}

func TestReadPCRsOfNobody(t *testing.T) {
	if _, err := ReadPCRs(filepath.Join(t.TempDir(), "none"), "sha256", []int{11}); err == nil {
		t.Error("no error")
	}
}
