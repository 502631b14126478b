package node

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestServers(t *testing.T) {
	leases, esp := t.TempDir(), t.TempDir()
	write := func(p, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// The form of systemd 252's lease files.
	lease := "# This is private data. Do not parse.\nADDRESS=10.77.0.100\nNETMASK=255.255.255.0\nSERVER_ADDRESS=10.77.0.1\nLIFETIME=3600\nCLIENTID=01525400770001\nOPTION_224="
	write(filepath.Join(leases, "2"), lease+hex.EncodeToString([]byte("https://10.77.0.1:8443"))+"\n")
	write(filepath.Join(leases, "3"), lease+"zz\n")
	write(filepath.Join(leases, "4"), "ADDRESS=10.0.0.1\n")
	write(filepath.Join(esp, "turnout", "server.url"), "https://10.77.0.9:8443\n")
	tests := []struct {
		name, trust, leases, esp string
		want                     []string
	}{
		{"trust first", "https://rack.example:8443", leases, esp, []string{"https://rack.example:8443", "https://10.77.0.1:8443", "https://10.77.0.9:8443"}},
		{"lease, then what the installer left", "", leases, esp, []string{"https://10.77.0.1:8443", "https://10.77.0.9:8443"}},
		{"each once", "https://10.77.0.9:8443", leases, esp, []string{"https://10.77.0.9:8443", "https://10.77.0.1:8443"}},
		{"nothing", "", t.TempDir(), t.TempDir(), nil},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, servers(tt.trust, tt.leases, tt.esp)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

func TestLocal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "turnout")
	if l := readLocal(dir); l != (local{}) {
		t.Errorf("memory of a fresh node = %+v", l)
	}
	want := local{Acted: 7, ArmedBoot: "b", Refused: "r"}
	if err := want.write(dir); err != nil {
		t.Fatal(err)
	}
	if got := readLocal(dir); got != want {
		t.Errorf("memory = %+v, want %+v", got, want)
	}
	if err := os.WriteFile(filepath.Join(dir, localFile), []byte("{\"acted\":"), 0o644); err != nil {
		t.Fatal(err)
	}
	if l := readLocal(dir); l != (local{}) {
		t.Errorf("damaged memory = %+v, want none", l)
	}
}
