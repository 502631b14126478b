package probe

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// attester is a program that stands for nvattest: it prints a document with
// the nonce that it was given in the place of NONCE, and exits.
func attester(t *testing.T, doc string, status string) []string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "doc"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	script := "#!/bin/sh\necho noise >&2\nsed \"s/NONCE/$1/g\" " + filepath.Join(dir, "doc") + "\nexit " + status + "\n"
	if err := os.WriteFile(filepath.Join(dir, "nvattest"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"/bin/sh", filepath.Join(dir, "nvattest"), "{nonce}"}
}

// The documents have the form of NVIDIA's claims schema; no GPU was at hand
// to capture one from.
func TestEvidence(t *testing.T) {
	const good = `{"eat_nonce":"NONCE","measres":"success","secboot":true,"dbgstat":"disabled","ueid":"4780","x-nvidia-device-type":"gpu","x-nvidia-gpu-attestation-report-signature-verified":true,"x-nvidia-gpu-attestation-report-nonce-match":true,"x-nvidia-mismatch-measurement-records":null}`
	doc := func(code, message string, claims ...string) string {
		return `{"result_code":` + code + `,"result_message":"` + message + `","claims":[` + strings.Join(claims, ",") + `],"detached_eat":["x"]}`
	}
	change := func(old, new string) string { return strings.Replace(good, old, new, 1) }
	for name, c := range map[string]struct {
		doc, status string
		want, err   string // what is said, or the error
		unknown     bool
	}{
		"all good":                 {doc: doc("0", "Ok", good, good), want: "2 GPUs"},
		"capital letters":          {doc: doc("0", "Ok", change(`"success"`, `"Success"`)), want: "1 GPUs"},
		"after lines of a log":     {doc: "[warn] slow\n" + doc("0", "Ok", good), want: "1 GPUs"},
		"measurements differ":      {doc: doc("0", "Ok", good, change(`"measres":"success"`, `"measres":"fail"`)), err: "GPU 1 (4780): its measurements"},
		"which measurement":        {doc: doc("7", "policy", strings.Replace(change(`"success"`, `"fail"`), `records":null`, `records":[{"index":9}]`, 1)), status: "1", err: "code 7: policy; GPU 0 (4780): its measurements are not those that NVIDIA published (measres \"fail\"), 1 differ, first index 9"},
		"old answer":               {doc: doc("0", "Ok", change("NONCE", "00ff")), err: "another challenge"},
		"signature":                {doc: doc("0", "Ok", change(`signature-verified":true`, `signature-verified":false`)), err: "signature-verified is false"},
		"code 0, exit 1":           {doc: doc("0", "Ok", good), status: "1", err: "failed with code 0"},
		"exit 0, code 3":           {doc: doc("3", "NVML is not there"), err: "code 3: NVML is not there"},
		"no measres":               {doc: doc("0", "Ok", `{"eat_nonce":"NONCE"}`), err: "its measurements"},
		"all is well with nothing": {doc: doc("0", "Ok"), err: "names no GPU", unknown: true},
		"no JSON":                  {doc: "segmentation fault", status: "139", err: "printed no result", unknown: true},
		"another JSON":             {doc: `{"nvattest":"1.0"}`, err: "no result_code", unknown: true},
	} {
		if c.status == "" {
			c.status = "0"
		}
		got, err := Evidence(t.Context(), attester(t, c.doc, c.status))
		if c.err == "" && (err != nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
		if c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || errors.Is(err, ErrUnknown) != c.unknown) {
			t.Errorf("%s: %q, %v; want the error %q, unknown %v", name, got, err, c.err, c.unknown)
		}
	}
	if _, err := Evidence(t.Context(), []string{"/nonexistent/nvattest"}); !errors.Is(err, ErrUnknown) {
		t.Errorf("no such command: %v; want that it cannot tell", err)
	}
}
