package vmtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// manufactureTPM makes the state of a new TPM 2.0 with an endorsement key
// certificate from the authority in caDir, which is made on first use.
func manufactureTPM(dir, caDir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.MkdirAll(caDir, 0o700); err != nil {
		return err
	}
	localca := filepath.Join(caDir, "localca.conf")
	setup := filepath.Join(caDir, "setup.conf")
	files := map[string]string{
		localca:                                 fmt.Sprintf("statedir = %[1]s\nsigningkey = %[1]s/signkey.pem\nissuercert = %[1]s/issuercert.pem\ncertserial = %[1]s/certserial\n", caDir),
		filepath.Join(caDir, "localca.options"): "--platform-manufacturer Turnout\n--platform-version 1\n--platform-model Virtual\n",
		setup:                                   fmt.Sprintf("create_certs_tool = swtpm_localca\ncreate_certs_tool_config = %s\ncreate_certs_tool_options = %s\nactive_pcr_banks = sha256\n", localca, filepath.Join(caDir, "localca.options")),
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return run("swtpm_setup", "--tpm2", "--tpmstate", dir, "--config", setup,
		"--create-ek-cert", "--create-platform-cert", "--lock-nvram", "--pcr-banks", "sha256,sha384", "--overwrite")
}

// EKRoots returns the certificates of the rack's TPM authority: what a
// server must trust to believe the rack's endorsement keys.
func (r *Rack) EKRoots() []string {
	ca := filepath.Join(r.Dir, "tpm-ca")
	return []string{filepath.Join(ca, "swtpm-localca-rootca-cert.pem"), filepath.Join(ca, "issuercert.pem")}
}

// startTPM runs swtpm on the state in dir and waits for its control socket.
func startTPM(dir string) (*exec.Cmd, error) {
	ctrl := filepath.Join(dir, "ctrl.sock")
	_ = os.Remove(ctrl)
	cmd := exec.Command("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir,
		"--ctrl", "type=unixio,path="+ctrl, "--log", "level=1,file="+filepath.Join(dir, "swtpm.log"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := startLocked(cmd); err != nil {
		return nil, fmt.Errorf("swtpm: %w", err)
	}
	for range 200 {
		if _, err := os.Stat(ctrl); err == nil {
			return cmd, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = endProcess(cmd)
	return nil, fmt.Errorf("swtpm did not open %q; see swtpm.log beside it", ctrl)
}
