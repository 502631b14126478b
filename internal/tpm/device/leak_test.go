package device

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/turnout-project/turnout/internal/tpm/credential"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// TestFlushOnEveryPath lets the n-th command of each operation fail, for all
// n: whatever was loaded before it must be gone afterwards.
func TestFlushOnEveryPath(t *testing.T) {
	d := open(t, swtpm.Start(t))
	ek, err := d.EK()
	if err != nil {
		t.Fatal(err)
	}
	ak, err := d.AK()
	if err != nil {
		t.Fatal(err)
	}
	blob, enc, _, err := credential.MakeCredential(ek.Public, ak)
	if err != nil {
		t.Fatal(err)
	}
	n := nonce(t)
	for name, op := range map[string]func() error{
		"EK":       func() error { _, err := d.EK(); return err },
		"AK":       func() error { _, err := d.AK(); return err },
		"Activate": func() error { _, err := d.Activate(blob, enc); return err },
		"Quote":    func() error { _, err := d.Quote(n, "sha256", []int{0, 4, 7}); return err },
		"Extend":   func() error { return d.Extend(16, []byte("x")) },
		"Info":     func() error { _, err := d.Info(); return err },
	} {
		commands := count(d, func() error { return op() })
		if commands == 0 {
			t.Fatalf("%s sends no command", name)
		}
		for at := range commands {
			failed, flush := failAt(d, at, op)
			if !failed {
				t.Errorf("%s: command %d of %d was not reached", name, at, commands)
			}
			if flush {
				dropLoaded(t, d) // the one thing that cannot be made good
				continue
			}
			noLeftovers(t, d)
			if t.Failed() {
				t.Fatalf("%s leaves something behind when command %d of %d fails", name, at, commands)
			}
		}
		if err := op(); err != nil {
			t.Errorf("%s afterwards: %v", name, err)
		}
	}
}

// count counts the commands of an operation.
func count(d *Device, op func() error) (n int) {
	d.t.before = func([]byte) error { n++; return nil }
	defer func() { d.t.before = nil }()
	if op() != nil {
		return 0
	}
	return n
}

// failAt runs an operation of which one command is not sent, and reports
// whether that one was reached, and was a FlushContext.
func failAt(d *Device, at int, op func() error) (reached, flush bool) {
	n := 0
	d.t.before = func(cmd []byte) error {
		defer func() { n++ }()
		if n != at {
			return nil
		}
		reached = true
		flush = tpm2.TPMCC(binary.BigEndian.Uint32(cmd[6:])) == tpm2.TPMCCFlushContext
		return errors.New("the bus is gone")
	}
	defer func() { d.t.before = nil }()
	op() //nolint:errcheck // some operations can do without one command or another
	return reached, flush
}

// dropLoaded flushes what is loaded.
func dropLoaded(t *testing.T, d *Device) {
	t.Helper()
	for _, first := range []uint32{0x80000000, 0x02000000, 0x03000000} {
		rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapHandles, Property: first, PropertyCount: 8}.Execute(d.t)
		if err != nil {
			t.Fatal(err)
		}
		h, err := rsp.CapabilityData.Data.Handles()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range h.Handle {
			if uint32(x)>>24 == first>>24 {
				if _, err := (tpm2.FlushContext{FlushHandle: x}).Execute(d.t); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// A TPM in dictionary-attack lockout says so, and still does all that an
// agent asks of it.
func TestLockout(t *testing.T) {
	d := open(t, swtpm.Start(t))
	guess := func() error {
		pub := akTemplate()
		pub.ObjectAttributes.NoDA = false
		key, err := tpm2.CreatePrimary{
			PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
			InPublic:      tpm2.New2B(pub),
			InSensitive: tpm2.TPM2BSensitiveCreate{Sensitive: &tpm2.TPMSSensitiveCreate{
				UserAuth: tpm2.TPM2BAuth{Buffer: []byte("right")}}},
		}.Execute(d.t)
		if err != nil {
			return err
		}
		defer tpm2.FlushContext{FlushHandle: key.ObjectHandle}.Execute(d.t) //nolint:errcheck // noLeftovers looks
		sel, err := selection(tpm2.TPMAlgSHA256, []int{0})
		if err != nil {
			return err
		}
		_, err = tpm2.Quote{
			SignHandle: tpm2.AuthHandle{Handle: key.ObjectHandle, Name: key.Name, Auth: tpm2.PasswordAuth([]byte("wrong"))},
			InScheme:   tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgNull}, PCRSelect: sel,
		}.Execute(d.t)
		return err
	}
	err := guess()
	if errors.Is(err, tpm2.TPMRCRetry) {
		err = guess() // the TPM first noted that it was not shut down in order
	}
	if !errors.Is(err, tpm2.TPMRCAuthFail) {
		t.Fatalf("a wrong password: %v", err)
	}
	info, err := d.Info()
	if err != nil || info.LockoutCounter != 1 || info.LockoutMax == 0 || info.InLockout || !strings.Contains(info.String(), "counter 1 of ") {
		t.Errorf("after one guess: %+v, %v", info, err)
	}
	for range info.LockoutMax {
		guess() //nolint:errcheck // fails until the TPM is locked, and then for that
	}
	info, err = d.Info()
	if err != nil || !info.InLockout || !strings.Contains(info.String(), "in dictionary-attack lockout") {
		t.Errorf("after %d guesses: %+v, %v", info.LockoutMax+1, info, err)
	}
	if _, err := d.Quote(nonce(t), "sha256", []int{0}); err != nil {
		t.Errorf("quote in lockout: %v", err)
	}
	ek, err := d.EK()
	if err != nil {
		t.Fatal(err)
	}
	ak, err := d.AK()
	if err != nil {
		t.Fatal(err)
	}
	blob, enc, secret, err := credential.MakeCredential(ek.Public, ak)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Activate(blob, enc); err != nil || string(got) != string(secret) {
		t.Errorf("activation in lockout: %v", err)
	}
}
