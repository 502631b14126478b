package probe

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	smiLimit = 25 * time.Second // nvidia-smi can take many seconds to wake eight GPUs
	smiDrain = time.Second      // how long the output of its children is waited for
)

// smi runs nvidia-smi and returns what it wrote to standard output. A call
// that fails is an error with its first line, which is all that a GPU that
// fell off the bus leaves of the table.
func (m *Machine) smi(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, smiLimit)
	defer cancel()
	command := m.SMI
	if len(command) == 0 {
		command = []string{"nvidia-smi"}
	}
	args = slices.Concat(command[1:], args)
	cmd := exec.CommandContext(ctx, command[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = smiDrain
	var stdout, stderr capped
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := m.wait(ctx, cmd)
	out := stdout.String()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		if errors.Is(err, exec.ErrWaitDelay) && cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // a child of it holds the pipes still
		}
		return out, nil
	case errors.Is(err, errHangs):
		return "", fmt.Errorf("%w: nvidia-smi %s: %w", ErrUnknown, strings.Join(args, " "), err)
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: %w", ErrUnknown, err)
	case ctx.Err() != nil:
		return "", fmt.Errorf("%w: nvidia-smi %s gave no answer in %s", ErrUnknown, strings.Join(args, " "), smiLimit)
	}
	said := firstLine(out)
	if said == "" {
		said = firstLine(stderr.String())
	}
	return out, &smiError{err, said}
}

// smiError is a call of nvidia-smi that failed as a whole.
type smiError struct {
	err  error
	said string
}

func (e *smiError) Error() string { return fmt.Sprintf("nvidia-smi: %v: %s", e.err, e.said) }
func (e *smiError) Unwrap() error { return e.err }

// blamesDriver reports whether it never got as far as a GPU.
func (e *smiError) blamesDriver() bool {
	for _, s := range []string{"version mismatch", "driver not loaded", "communicate with the nvidia driver"} {
		if strings.Contains(strings.ToLower(e.said), s) {
			return true
		}
	}
	return false
}

var errHangs = errors.New("an earlier call hangs and cannot be killed")

// wait runs a command, and returns soon after ctx ends whatever the command
// does: one in state D outlives being killed. While one does, the machine is
// not asked again, so that they do not pile up.
func (m *Machine) wait(ctx context.Context, cmd *exec.Cmd) error {
	if !m.hangs.CompareAndSwap(false, true) {
		return errHangs
	}
	if err := cmd.Start(); err != nil {
		m.hangs.Store(false)
		return err
	}
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		m.hangs.Store(false)
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select { // it ends soon after it is killed, unless it is in state D
	case <-done:
	case <-time.After(3 * smiDrain):
	}
	return ctx.Err()
}

// smiMost bounds the output that is kept, in bytes; sixteen GPUs cut into
// seven instances each make some 300 KiB.
const smiMost = 4 << 20

// capped keeps the first smiMost bytes that are written to it. It may be read
// while a process that hangs still writes.
type capped struct {
	mu sync.Mutex
	b  []byte
}

func (c *capped) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b = append(c.b, p[:min(len(p), smiMost-len(c.b))]...)
	return len(p), nil
}

func (c *capped) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.b)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return strings.TrimSpace(line)
}

// row is one GPU in the answer to a query, by field. What nvidia-smi does not
// know is absent.
type row map[string]string

// query asks for fields of all GPUs, in the order of their indexes.
func (m *Machine) query(ctx context.Context, fields ...string) ([]row, error) {
	out, err := m.smi(ctx, "--query-gpu="+strings.Join(fields, ","), "--format=csv,noheader,nounits")
	if err != nil {
		return nil, err
	}
	r := csv.NewReader(strings.NewReader(out))
	r.FieldsPerRecord = len(fields)
	r.TrimLeadingSpace = true
	records, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%w: nvidia-smi says %q instead of %d fields", ErrUnknown, firstLine(out), len(fields))
	}
	var rows []row
	for _, rec := range records {
		g := row{}
		for i, v := range rec {
			if v = known(v); v != "" {
				g[fields[i]] = v
			}
		}
		rows = append(rows, g)
	}
	if len(rows) == 0 {
		return nil, errors.New("nvidia-smi lists no GPU")
	}
	return rows, nil
}

// known returns a value of nvidia-smi, "" for its ways to say that there is
// none. Which of them stands where changes with the driver, brackets or not.
func known(v string) string {
	v = strings.TrimSpace(v)
	bare := strings.TrimSuffix(strings.TrimPrefix(v, "["), "]")
	for _, none := range []string{"N/A", "Not Supported", "Unknown Error", "Not Available", "Insufficient Permissions", "GPU requires reset", "ERR!", "Unknown", "Requested functionality has been deprecated"} {
		if strings.EqualFold(bare, none) {
			return ""
		}
	}
	return v
}

// each compares one field of every GPU.
func (m *Machine) each(ctx context.Context, field, want string, equal func(got string) bool) (string, error) {
	rows, err := m.query(ctx, field)
	if err != nil {
		return "", err
	}
	var wrong, blank []string
	for i, g := range rows {
		switch v, ok := g[field]; {
		case !ok:
			blank = append(blank, strconv.Itoa(i))
		case !equal(v):
			wrong = append(wrong, fmt.Sprintf("GPU %d %s", i, v))
		}
	}
	switch {
	case len(wrong) > 0:
		return "", fmt.Errorf("%s: expected %s, seen %s", field, want, strings.Join(wrong, ", "))
	case len(blank) > 0:
		return "", fmt.Errorf("%w: %s is not known of GPU %s", ErrUnknown, field, strings.Join(blank, ", "))
	}
	return fmt.Sprintf("%s is %s on %d GPUs", field, want, len(rows)), nil
}

// gpu is a GPU in the list of nvidia-smi -L.
type gpu struct {
	index     int
	name      string
	instances []string // profiles, as they are listed; "1c.3g.71gb" is a part of one
}

var (
	gpuLine = regexp.MustCompile(`^GPU (\d+): (.*) \(UUID: `)
	migLine = regexp.MustCompile(`^\s+MIG (\S+)\s+Device\s+\d+: \(UUID: `)
)

// list returns the GPUs and their MIG instances.
func (m *Machine) list(ctx context.Context) ([]gpu, error) {
	out, err := m.smi(ctx, "-L")
	if err != nil {
		return nil, err
	}
	return parseList(out)
}

func parseList(out string) ([]gpu, error) {
	var gpus []gpu
	for line := range strings.Lines(out) {
		if f := gpuLine.FindStringSubmatch(line); f != nil {
			i, err := strconv.Atoi(f[1])
			if err != nil {
				return nil, fmt.Errorf("%w: nvidia-smi lists GPU %s", ErrUnknown, f[1])
			}
			gpus = append(gpus, gpu{index: i, name: f[2]})
		} else if f := migLine.FindStringSubmatch(line); f != nil && len(gpus) > 0 {
			g := &gpus[len(gpus)-1]
			g.instances = append(g.instances, f[1])
		}
	}
	if len(gpus) == 0 {
		return nil, fmt.Errorf("nvidia-smi lists no GPU: %s", firstLine(out))
	}
	return gpus, nil
}
