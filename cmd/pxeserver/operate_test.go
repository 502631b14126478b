package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/server"
)

// registryOf serves a layout as an OCI registry serves a repository.
func registryOf(t *testing.T, l *oci.Layout) (host string) {
	mux := http.NewServeMux()
	blob := func(media string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b, err := l.ReadBlob(r.PathValue("digest"))
			if err != nil {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", media)
			w.Header().Set("Docker-Content-Digest", r.PathValue("digest"))
			http.ServeContent(w, r, "", fleet.Event{}.At, bytes.NewReader(b))
		}
	}
	mux.HandleFunc("GET /v2/turnout/rack/manifests/{digest}", blob(oci.MediaManifest))
	mux.HandleFunc("GET /v2/turnout/rack/blobs/{digest}", blob("application/octet-stream"))
	mux.HandleFunc("GET /v2/turnout/rack/referrers/{digest}", func(w http.ResponseWriter, r *http.Request) {
		refs, err := l.Referrers(r.PathValue("digest"), manifest.MediaSignature)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", oci.MediaIndex)
		json.NewEncoder(w).Encode(oci.Index{SchemaVersion: 2, MediaType: oci.MediaIndex, Manifests: refs}) //nolint:errcheck // to a test
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// labels picks nodes by their labels: in lists, flips and rollouts.
func labels(t *testing.T, l *lab) {
	t.Helper()
	listed := func(selector string) string {
		t.Helper()
		var out []string
		var nodes []fleet.Node
		if err := json.Unmarshal([]byte(l.must("node", "list", "-l", selector, "-o", "json")), &nodes); err != nil {
			t.Fatal(err)
		}
		for _, n := range nodes {
			out = append(out, n.Name)
		}
		return strings.Join(out, " ")
	}
	l.must("node", "label", "n1", "n2", "canary=", "zone=b")
	l.must("node", "label", "n2", "canary-")
	for selector, want := range map[string]string{
		"gpu=h100": "n1", "zone=b": "n1 n2", "canary": "n1", "!gpu": "n2", "zone=b,gpu!=h100": "n2", "zone=c": "",
	} {
		if got := listed(selector); got != want {
			t.Errorf("node list -l %q = %q, want %q", selector, got, want)
		}
	}
	for _, bad := range [][]string{
		{"node", "list", "-l", "a b"}, {"node", "label", "n1"}, {"node", "label", "gpu=h100"}, {"node", "label", "n1", "a=b c"},
		{"slot", "flip", "-l", "x", "n1"}, {"slot", "flip", "-l", "a b"}, {"rollout", "plan", "--image", "rack-base 1.0", "--stage", "labels:a b"},
	} {
		if r := l.do(bad...); r.code != exitUsage {
			t.Errorf("%q: %+v; want a usage error", bad, r)
		}
	}
	if r := l.do("slot", "flip", "-l", "zone=c", "--dry-run"); r.code != exitRefused || !strings.Contains(r.errOut, "no node matches") {
		t.Errorf("flip of nobody: %+v", r)
	}
	if out := l.must("slot", "flip", "-l", "gpu=h100", "--dry-run"); !strings.Contains(out, "n1") || strings.Contains(out, "n2") {
		t.Errorf("flip by label:\n%s", out)
	}
	if out := l.must("rollout", "plan", "--image", "rack-base 1.0", "--stage", "labels:canary", "--stage", "labels:zone=b"); !strings.Contains(out, "nodes with canary, 1 nodes") || !strings.Contains(out, "nodes with zone=b, 1 nodes") {
		t.Errorf("plan by label:\n%s", out)
	}
}

// TestOperate is what an operator does besides rollouts: images from a
// registry, nodes from a file, who may do what, and lists in all forms.
func TestOperate(t *testing.T) {
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := manifest.MarshalPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	keyFile := filepath.Join(t.TempDir(), "image.pub")
	if err := os.WriteFile(keyFile, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t, "--image-key", keyFile)
	alice := filepath.Join(t.TempDir(), "alice.token")
	l.must("token", "add", "alice", "--role", "viewer", "--file", alice)
	bob := strings.TrimSpace(l.must("user", "add", "bob", "--role", "operator"))
	if r := l.do("token", "add", "bob"); r.code != exitRefused || !strings.Contains(r.errOut, "token remove bob") {
		t.Errorf("a second token: %+v", r)
	}
	carol := filepath.Join(t.TempDir(), "carol.pem")
	l.must("token", "add", "carol", "--role", "operator", "--certificate", "--file", carol)
	dave := filepath.Join(t.TempDir(), "dave.pem")
	if pair, _, err := server.NewCertificate("dave", "viewer", time.Now(), time.Hour); err != nil || os.WriteFile(dave, pair, 0o600) != nil {
		t.Fatal(err)
	}
	l.must("token", "add", "dave", "--use-certificate", dave)
	for _, bad := range [][]string{
		{"token", "add", "a b"}, {"token", "add", "carol", "--role", "root"}, {"token", "add", "erin", "--certificate"},
		{"token", "add", "erin", "--certificate", "--file", "x", "--life", "0s"}, {"token", "add", "erin", "--use-certificate", dave, "--file", "x"},
	} {
		if r := l.do(bad...); r.code != exitUsage {
			t.Errorf("%q: %+v; want a usage error", bad, r)
		}
	}
	if out := l.must("token", "list"); !strings.Contains(out, "alice") || !strings.Contains(out, "viewer") || strings.Contains(out, bob) {
		t.Errorf("token list:\n%s", out)
	}
	l.start()

	layout, err := oci.Open(image(t, "1.0", key))
	if err != nil {
		t.Fatal(err)
	}
	digest, err := layout.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	name := registryOf(t, layout) + "/turnout/rack"
	if r := l.do("image", "publish", name+":latest", "--plain-http"); r.code != exitUsage || !strings.Contains(r.errOut, "by digest") {
		t.Errorf("publishing a tag: %+v; want it refused", r)
	}
	l.must("image", "publish", name+"@"+digest, "--plain-http")
	if out := l.must("image", "list"); !strings.Contains(out, "rack-base") {
		t.Errorf("image list:\n%s", out)
	}

	file := filepath.Join(t.TempDir(), "nodes.csv")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{
		"name,mac\nn1,52:54:00:00:00:01\n":                        `column "mac"`,
		"name,pool\nn1,rack\n":                                    `no column "macs"`,
		"name,macs\nn1,52:54\n":                                   "line 2: MAC",
		"name,macs\nn1,\n":                                        "line 2: want a name",
		"name,macs\nn1,52:54:00:00:00:01\nn2,52-54-00-00-00-01\n": "line 3: 52:54:00:00:00:01 is node n1's",
		"name,macs\nn1,52:54:00:00:00:01,x\n":                     "wrong number of fields",
		"":                                                        "first line",
		"name,macs\nn1,52:54:00:00:00:01\nn1,52:54:00:00:00:02\n":  "line 3: n1 is node n1's",
		"name,macs,macs\nn1,52:54:00:00:00:01,52:54:00:00:00:02\n": "at most once",
		"name,macs,labels\nn1,52:54:00:00:00:01,gpu\n":             "line 2: label",
		"\ufeffname;macs\nn1;52:54:00:00:00:01\n":                  "column",
	} {
		write(text)
		if r := l.do("node", "import", file); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("import of %q: %+v; want %q", text, r, want)
		}
	}
	write("# the rack\nname,pool,macs,domain,labels\nn1,rack,52:54:00:00:00:01 52-54-00-00-00-11,nvl-1,gpu=h100 zone=a\nn2,rack,525400000002,,\n")
	if out := l.must("node", "import", file, "--dry-run"); strings.Count(out, "would add") != 2 || strings.Contains(l.must("node", "list"), "n1") {
		t.Errorf("dry run:\n%s", out)
	}
	if out := l.must("node", "import", file); !strings.Contains(out, "2 nodes added, 0 were there") {
		t.Errorf("import:\n%s", out)
	}
	if out := l.must("node", "import", file); !strings.Contains(out, "0 nodes added, 2 were there") {
		t.Errorf("import again:\n%s", out)
	}
	write("name,macs\nn1,52:54:00:00:00:77\n")
	if r := l.do("node", "import", file); r.code != exitRefused {
		t.Errorf("import of another n1: %+v", r)
	}
	if wide := l.must("node", "list", "-o", "wide"); !strings.Contains(line(wide, "n1"), "nvl-1") || !strings.Contains(wide, "OTHER SLOT") {
		t.Errorf("wide:\n%s", wide)
	}
	labels(t, l)
	var fromJSON, fromYAML any
	if err := json.Unmarshal([]byte(l.must("node", "list", "-o", "json")), &fromJSON); err != nil {
		t.Fatal(err)
	}
	text := l.must("node", "list", "-o", "yaml")
	if err := yaml.Unmarshal([]byte(text), &fromYAML); err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(fromJSON)
	b, _ := json.Marshal(fromYAML)
	if string(a) != string(b) || !strings.HasPrefix(text, "- name: n1\n") {
		t.Errorf("YAML differs from JSON:\n%s\n%s\n%s", a, b, text)
	}
	if r := l.do("node", "list", "-o", "xml"); r.code != exitUsage {
		t.Errorf("-o xml: %+v", r)
	}
	if r := l.do("health"); r.code != exitRefused || !strings.Contains(r.out, "it has never reported") || !strings.Contains(r.errOut, "2 of 2") {
		t.Errorf("health of nodes that never reported: %+v", r)
	}
	if r := l.do("health", "nobody"); r.code != exitFailure {
		t.Errorf("health of nobody: %+v", r)
	}
	for _, tt := range []struct {
		cert string
		args []string
		code int
	}{
		{carol, []string{"node", "cordon", "n2"}, exitOK}, {carol, []string{"node", "uncordon", "n2"}, exitOK},
		{dave, []string{"node", "list"}, exitOK}, {dave, []string{"node", "cordon", "n2"}, exitRefused}, {keyFile, []string{"node", "list"}, exitUsage},
	} {
		if r := command(append([]string{"--config", l.config, "--client-cert", tt.cert}, tt.args...)...); r.code != tt.code {
			t.Errorf("%v by certificate: %+v; want status %d", tt.args, r, tt.code)
		}
	}
	asAlice := append([]string{}, "--config", l.config, "--token-file", alice)
	if r := command(append(asAlice, "node", "list")...); r.code != exitOK {
		t.Errorf("a viewer looks: %+v", r)
	}
	if r := command(append(asAlice, "node", "cordon", "n1")...); r.code != exitRefused || !strings.Contains(r.errOut, "alice") {
		t.Errorf("a viewer acts: %+v; want it refused", r)
	}
	l.must("token", "remove", "alice")
	if r := l.do("token", "remove", "alice"); r.code != exitFailure {
		t.Errorf("removing her again: %+v", r)
	}
	if out := l.must("token", "list"); strings.Contains(out, "alice") {
		t.Errorf("token list:\n%s", out)
	}
}
