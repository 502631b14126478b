package node

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/verity"
)

// publish puts an image of about a MiB on the server and returns its digest.
func (r *rig) publish() string {
	r.t.Helper()
	root := make([]byte, 1<<20)
	_, _ = rand.Read(root)
	path := filepath.Join(r.t.TempDir(), "tree")
	f, err := os.Create(path)
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	res, err := verity.Build(r.t.Context(), bytes.NewReader(root), int64(len(root)), f, verity.Params{})
	if err != nil {
		r.t.Fatal(err)
	}
	tree, err := os.ReadFile(path)
	if err != nil {
		r.t.Fatal(err)
	}
	hash := hex.EncodeToString(res.RootHash[:])
	uki := []byte("roothash=" + hash)
	blob := func(b []byte) manifest.Blob {
		return manifest.Blob{Digest: manifest.DigestOf(b), SizeBytes: int64(len(b))}
	}
	m := manifest.Manifest{
		SchemaVersion: manifest.Version, Name: "rack", Version: "2", Architecture: runtime.GOARCH,
		Root: blob(root), Verity: manifest.Verity{Blob: blob(tree), RootHash: hash}, UKI: blob(uki),
	}
	config, err := m.Encode()
	if err != nil {
		r.t.Fatal(err)
	}
	om, err := json.Marshal(oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest,
		Config: oci.Descriptor{Digest: manifest.DigestOf(config), Size: int64(len(config))}})
	if err != nil {
		r.t.Fatal(err)
	}
	digest := manifest.DigestOf(om)
	sig, err := manifest.Sign(r.key, digest)
	if err != nil {
		r.t.Fatal(err)
	}
	r.server.with(func() {
		r.server.images[digest+"/manifest"], r.server.images[digest+"/signature"] = om, sig
		for _, b := range [][]byte{root, tree, uki, config} {
			r.server.images[digest+"/blobs/"+manifest.DigestOf(b)] = b
		}
	})
	return digest
}

func TestAgentInstalls(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, badB)
	digest := r.publish()
	r.server.desired = fleet.Desired{Image: digest, Generation: 3, Reason: "rollout r1"}
	r.healthy()
	r.run()
	<-r.reboots
	r.wantUKIs(goodA, "g000003-"+manifest.Short(digest)+"+2.efi")
	b := r.server.last().Slot(fleet.SlotB)
	if b.State != fleet.SlotArmed || b.Image != digest || b.Name != "rack 2" || b.Generation != 3 {
		t.Errorf("last report has slot B as %+v, want the image armed", b)
	}
	for _, want := range []string{"install.started: image " + manifest.Short(digest) + " into slot B: rollout r1", "slot.armed: slot B", "node.rebooting"} {
		if !strings.Contains(r.server.story(), want) {
			t.Errorf("the story lacks %q:\n%s", want, r.server.story())
		}
	}
}

// TestAgentRefusesUnsigned: an image without a signature that holds is refused
// once per wish, told, and installed when it is asked for anew and is signed.
func TestAgentRefusesUnsigned(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, "")
	digest := r.publish()
	var sig []byte
	r.server.with(func() {
		sig = r.server.images[digest+"/signature"]
		r.server.images[digest+"/signature"] = nil
		r.server.desired = fleet.Desired{Image: digest, Generation: 3}
	})
	r.healthy()
	r.run()
	r.until("the refusal", func() bool { return strings.Contains(r.server.story(), "install.refused") })
	r.until("the refusal in a report", func() bool { return strings.HasPrefix(r.server.last().Activity, "refused: ") })
	r.wantUKIs(goodA)
	if acted := r.server.last().Acted; acted != 3 {
		t.Errorf("acted on generation %d, want 3: a refused image is not tried for ever", acted)
	}
	r.server.with(func() {
		r.server.images[digest+"/signature"] = sig
		r.server.desired.Generation = 4
	})
	<-r.reboots
	r.wantUKIs(goodA, "g000004-"+manifest.Short(digest)+"+2.efi")
}
