package install

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/manifest"
)

func TestFetchRefuses(t *testing.T) {
	otherKey, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		edit func(*manifest.Manifest)
		make func(*built)
		want string
	}{
		{"signature of another key", nil, func(b *built) { b.key = otherKey }, "not signed by any"},
		{"signature damaged", nil, func(b *built) { b.sig[5] ^= 1 }, "not signed by any"},
		{"no signature", nil, func(b *built) { b.sig = nil }, "not signed by any"},
		{"OCI manifest exchanged", nil, func(b *built) { b.oci = append(b.oci, ' ') }, "OCI manifest has digest"},
		{"description exchanged", nil, func(b *built) {
			for d, x := range b.blobs {
				if bytes.Contains(x, []byte("schemaVersion")) {
					b.blobs[d] = bytes.Replace(x, []byte("rack-base"), []byte("rack-evil"), 1)
				}
			}
		}, "description has digest"},
		{"other architecture", func(m *manifest.Manifest) { m.Architecture = "riscv64" }, nil, "for riscv64"},
		{"schema of the future", func(m *manifest.Manifest) { m.SchemaVersion = 9 }, nil, "schema version 9"},
		{"chunks too large", func(m *manifest.Manifest) { m.Root.ChunkSize = 1 << 40; m.Root.Chunks = m.Root.Chunks[:1] }, nil, "in chunks of"},
		{"too few chunks", func(m *manifest.Manifest) { m.Root.Chunks = m.Root.Chunks[1:] }, nil, "lists 39 chunks"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := build(t, 1, tt.edit)
			if tt.make != nil {
				tt.make(b)
			}
			_, err := Fetch(t.Context(), &source{built: b}, b.digest, trusted(b))
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Fetch = %v, want ErrRefused with %q", err, tt.want)
			}
		})
	}
}
