package probe

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"
)

// EvidenceCommand is NVIDIA's own attestation command, which has the GPUs
// sign what firmware they run and compares it with NVIDIA's reference values.
// "{nonce}" becomes a fresh one.
var EvidenceCommand = []string{"nvattest", "--format", "json", "attest", "--device", "gpu", "--nonce", "{nonce}"}

// Evidence runs an attestation command for GPUs and says what came of it.
// Nothing of the GPU's signatures is checked here: that is the command's
// business. A command that is not there, or does not speak, is unknown.
//
// The JSON that it prints has result_code, result_message, and claims, one
// object for each GPU (NVIDIA Attestation SDK, claims schema).
func Evidence(ctx context.Context, argv []string) (string, error) {
	if len(argv) == 0 {
		argv = EvidenceCommand
	}
	nonce := make([]byte, 32)
	rand.Read(nonce) //nolint:errcheck // never fails
	argv = slices.Clone(argv)
	asked := ""
	for i, a := range argv {
		if strings.Contains(a, "{nonce}") {
			asked = hex.EncodeToString(nonce)
			argv[i] = strings.ReplaceAll(a, "{nonce}", asked)
		}
	}
	var out, says bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &says
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%w: %s is not in the image", ErrUnknown, argv[0])
	}
	r, bad := readEvidence(out.Bytes())
	if bad != nil {
		return "", fmt.Errorf("%w: %s printed no result (%w): %s", ErrUnknown, argv[0], bad, lastLine(says.String()))
	}
	return r.judge(asked, err)
}

// evidenceResult is what the command prints.
type evidenceResult struct {
	Code    *int             `json:"result_code"`
	Message string           `json:"result_message"`
	Claims  []map[string]any `json:"claims"`
}

func readEvidence(b []byte) (*evidenceResult, error) {
	if i := bytes.IndexByte(b, '{'); i > 0 {
		b = b[i:] // lines of its log
	}
	var r evidenceResult
	if err := json.NewDecoder(bytes.NewReader(b)).Decode(&r); err != nil {
		return nil, err
	}
	if r.Code == nil {
		return nil, errors.New("no result_code")
	}
	return &r, nil
}

// judge reads the claims. Each of them must speak for its GPU, whatever the
// exit status says.
func (r *evidenceResult) judge(nonce string, exit error) (string, error) {
	if *r.Code != 0 || exit != nil {
		why := r.Message
		if worst := r.firstFailure(nonce); worst != "" {
			why += "; " + worst
		}
		return "", fmt.Errorf("GPU attestation failed with code %d: %s", *r.Code, why)
	}
	if len(r.Claims) == 0 {
		return "", fmt.Errorf("%w: the command says that all is well, but names no GPU", ErrUnknown)
	}
	if worst := r.firstFailure(nonce); worst != "" {
		return "", errors.New(worst)
	}
	return fmt.Sprintf("%d GPUs measured as NVIDIA published", len(r.Claims)), nil
}

// firstFailure names the first GPU that has a claim against it, and which.
func (r *evidenceResult) firstFailure(nonce string) string {
	for i, c := range r.Claims {
		gpu := fmt.Sprintf("GPU %d", i)
		if id, ok := c["ueid"].(string); ok {
			gpu += " (" + id + ")"
		}
		if n, ok := c["eat_nonce"].(string); ok && nonce != "" && !strings.EqualFold(n, nonce) {
			return gpu + " answered another challenge than the one it was sent"
		}
		if m, _ := c["measres"].(string); !strings.EqualFold(m, "success") {
			what := fmt.Sprintf("%s: its measurements are not those that NVIDIA published (measres %q)", gpu, m)
			if bad, ok := c["x-nvidia-mismatch-measurement-records"].([]any); ok && len(bad) > 0 {
				what += fmt.Sprintf(", %d differ, first %v", len(bad), indexOf(bad[0]))
			}
			return what
		}
		for _, k := range sortedKeys(c) {
			if v, ok := c[k].(bool); ok && !v && mustHold(k) {
				return fmt.Sprintf("%s: %s is false", gpu, k)
			}
		}
	}
	return ""
}

// mustHold tells the claims that are answers to "is it genuine?" from those
// that only describe the GPU.
func mustHold(claim string) bool {
	return slices.ContainsFunc([]string{"-match", "-verified", "-validated", "-parsed", "-arch-check"}, func(end string) bool { return strings.HasSuffix(claim, end) })
}

// indexOf names a measurement record.
func indexOf(record any) any {
	m, _ := record.(map[string]any)
	for _, k := range []string{"index", "measurement-index", "measurementIndex"} {
		if v, ok := m[k]; ok {
			return fmt.Sprintf("index %v", v)
		}
	}
	return record
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}
