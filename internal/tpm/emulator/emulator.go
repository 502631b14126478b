// Package emulator reads the PCRs of a software TPM (swtpm) whose machine has
// just been ended. It opens no TPM of this machine.
package emulator

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/google/go-tpm/tpm2"
	"golang.org/x/sys/unix"
)

// Commands of swtpm's control channel (swtpm_ioctls(3)).
const cmdSetDataFD = 0x10

const limit = 10 * time.Second

var banks = map[string]tpm2.TPMAlgID{"sha256": tpm2.TPMAlgSHA256, "sha384": tpm2.TPMAlgSHA384}

// ReadPCRs returns values of a bank ("sha256", "sha384"), at most eight. ctrl
// is the control socket of a swtpm that runs without --terminate and whose
// QEMU was killed: the values are those at that moment.
func ReadPCRs(ctrl, bank string, pcrs []int) (map[int][]byte, error) {
	alg, ok := banks[bank]
	if !ok || len(pcrs) > 8 {
		return nil, fmt.Errorf("software TPM: bank %q, %d PCRs: want sha256 or sha384, and eight at most", bank, len(pcrs))
	}
	data, err := attach(ctrl)
	if err != nil {
		return nil, fmt.Errorf("software TPM: %w", err)
	}
	defer data.Close()
	list := make([]uint, len(pcrs))
	for i, p := range pcrs {
		list[i] = uint(p)
	}
	rsp, err := tpm2.PCRRead{PCRSelectionIn: tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: alg, PCRSelect: tpm2.PCClientCompatible.PCRs(list...)}}}}.Execute(&channel{data})
	if err != nil {
		return nil, fmt.Errorf("software TPM: reading PCRs: %w", err)
	}
	out := map[int][]byte{}
	given := rsp.PCRSelectionOut.PCRSelections
	if len(given) != 1 {
		return nil, errors.New("software TPM: it gave another selection than was asked for")
	}
	next := 0
	for i, b := range given[0].PCRSelect {
		for bit := range 8 {
			if b>>bit&1 == 1 && next < len(rsp.PCRValues.Digests) {
				out[8*i+bit] = rsp.PCRValues.Digests[next].Buffer
				next++
			}
		}
	}
	if len(out) != len(pcrs) {
		return nil, fmt.Errorf("software TPM: it gave %d of %d PCRs: the bank %s is not active", len(out), len(pcrs), bank)
	}
	return out, nil
}

// attach gives swtpm one end of a new data channel and returns the other.
func attach(ctrl string) (*os.File, error) {
	c, err := net.DialTimeout("unix", ctrl, limit)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	ours := os.NewFile(uintptr(pair[0]), "swtpm")
	_, _, err = c.(*net.UnixConn).WriteMsgUnix(binary.BigEndian.AppendUint32(nil, cmdSetDataFD), unix.UnixRights(pair[1]), nil)
	_ = unix.Close(pair[1])
	var code [4]byte
	if err == nil {
		_, err = io.ReadFull(c, code[:])
	}
	if n := binary.BigEndian.Uint32(code[:]); err == nil && n != 0 {
		err = fmt.Errorf("it refused a data channel (code %#x)", n)
	}
	if err != nil {
		ours.Close()
		return nil, err
	}
	return ours, nil
}

// channel implements go-tpm's transport over a data channel.
type channel struct{ f *os.File }

// Send runs one command.
func (c *channel) Send(cmd []byte) ([]byte, error) {
	if _, err := c.f.Write(cmd); err != nil {
		return nil, err
	}
	rsp := make([]byte, 10) // tag, size, code: TPM 2.0 part 1, section 18
	if _, err := io.ReadFull(c.f, rsp); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(rsp[2:])
	if size < 10 || size > 4096 {
		return nil, fmt.Errorf("a response of %d bytes", size)
	}
	rsp = append(rsp, make([]byte, size-10)...)
	_, err := io.ReadFull(c.f, rsp[10:])
	return rsp, err
}
