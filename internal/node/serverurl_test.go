package node

import (
	"context"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"

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
	two := t.TempDir()
	write(filepath.Join(two, "turnout", "server.url"), "https://10.77.0.9:8443\n")
	if err := keepServers(context.Background(), two, []string{"https://10.77.0.2:8443", "https://10.77.0.1:8443"}); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, trust, leases, esp string
		want                     []string
	}{
		{"trust first", "https://rack.example:8443", leases, esp, []string{"https://rack.example:8443", "https://10.77.0.1:8443", "https://10.77.0.9:8443"}},
		{"lease, then what the installer left", "", leases, esp, []string{"https://10.77.0.1:8443", "https://10.77.0.9:8443"}},
		{"each once", "https://10.77.0.9:8443", leases, esp, []string{"https://10.77.0.9:8443", "https://10.77.0.1:8443"}},
		{"what a server said of all", "", leases, two, []string{"https://10.77.0.1:8443", "https://10.77.0.2:8443", "https://10.77.0.9:8443"}},
		{"nothing", "", t.TempDir(), t.TempDir(), nil},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, servers(tt.trust, tt.leases, tt.esp)); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
	}
}

// What is known already is not written again: a node is told with each
// heartbeat.
func TestKeepServersOnce(t *testing.T) {
	esp := t.TempDir()
	file := filepath.Join(esp, "turnout", "fleet.url")
	old := time.Unix(1, 0)
	for i, tt := range []struct {
		urls    []string
		touched bool
	}{{[]string{"https://a:1"}, true}, {[]string{"https://a:1"}, false}, {[]string{"https://a:1", "https://b:1"}, true}} {
		if err := keepServers(context.Background(), esp, tt.urls); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := !fi.ModTime().Equal(old); got != tt.touched {
			t.Errorf("step %d: written %v, want %v", i, got, tt.touched)
		}
		if err := os.Chtimes(file, old, old); err != nil {
			t.Fatal(err)
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
