package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStore(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", ""},
		{"store: postgres://turnout@db/fleet", ""},
		{"store: postgresql://turnout@/fleet?host=/run/postgresql\nstore_password_file: pw", ""},
		{"store: postgres://turnout:s3cr3t@db/fleet", "password in it"},
		{"store: postgres://turnout@db/fleet?password=s3cr3t", "password in it"},
		{"store: postgres://turnout@db", "want"},
		{"store: mysql://db/fleet", "want"},
		{"store_password_file: pw", "names no database"},
	} {
		_, err := Parse("x.yaml", []byte("address: 10.0.0.1\ndhcp: {mode: off}\n"+c.text+"\n"))
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("%q: %v; want %q", c.text, err, c.want)
		}
	}
}

func TestStoreSecret(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pw"), []byte("s3cr3t \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Parse(filepath.Join(dir, "x.yaml"), []byte("address: 10.0.0.1\ndhcp: {mode: off}\nstore: postgres://t@/fleet\nstore_password_file: pw\n"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.StoreSecret(); err != nil || got != "s3cr3t " {
		t.Errorf("StoreSecret = %q, %v", got, err)
	}
}
