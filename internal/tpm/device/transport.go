package device

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// maxResponse is the largest response of a PC Client TPM.
const maxResponse = 4096

// transport sends one command at a time to a device node or a socket. It
// implements transport.TPM of go-tpm.
type transport struct {
	file   *os.File // a device node, or nil
	socket string   // a Unix socket, dialled for each command
	broken bool     // a command did not end: the device is not usable any more

	before func(cmd []byte) error // for tests: an error is that of the command
}

func dial(path string) (*transport, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if fi.Mode()&os.ModeSocket != 0 {
		return &transport{socket: path}, nil
	}
	if fi.Mode()&os.ModeCharDevice == 0 {
		return nil, fmt.Errorf("%s is neither a character device nor a socket", path)
	}
	// Not os.OpenFile: it makes the descriptor non-blocking, and then the
	// kernel runs commands behind our back and answers reads with nothing.
	fd, err := syscall.Open(path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &transport{file: os.NewFile(uintptr(fd), path)}, nil
}

func (t *transport) close() error {
	if t.file == nil || t.broken {
		return nil // closing would wait for the command that hangs
	}
	return t.file.Close()
}

// Send runs one command.
func (t *transport) Send(cmd []byte) ([]byte, error) {
	if t.broken {
		return nil, errors.New("the TPM did not answer an earlier command; power the machine off and on")
	}
	if t.before != nil {
		if err := t.before(cmd); err != nil {
			return nil, err
		}
	}
	if t.socket != "" {
		return t.sendSocket(cmd)
	}
	type answer struct {
		b   []byte
		err error
	}
	done := make(chan answer, 1)
	go func() {
		b, err := sendFile(t.file, cmd)
		done <- answer{b, err}
	}()
	timer := time.NewTimer(commandTimeout)
	defer timer.Stop()
	select {
	case a := <-done:
		return a.b, a.err
	case <-timer.C:
		t.broken = true
		return nil, fmt.Errorf("the TPM did not answer within %v", commandTimeout)
	}
}

// sendFile writes a command and reads the response; the kernel takes and
// gives each in one piece.
func sendFile(f *os.File, cmd []byte) ([]byte, error) {
	if _, err := f.Write(cmd); err != nil {
		return nil, fmt.Errorf("sending a command to the TPM: %w", err)
	}
	b := make([]byte, maxResponse)
	n, err := f.Read(b)
	if err != nil {
		return nil, fmt.Errorf("reading the TPM's response: %w", err)
	}
	return b[:n], nil
}

func (t *transport) sendSocket(cmd []byte) ([]byte, error) {
	c, err := net.DialTimeout("unix", t.socket, commandTimeout)
	if err != nil {
		return nil, fmt.Errorf("connecting to the TPM: %w", err)
	}
	defer c.Close() //nolint:errcheck // nothing is buffered
	if err := c.SetDeadline(time.Now().Add(commandTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(cmd); err != nil {
		return nil, fmt.Errorf("sending a command to the TPM: %w", err)
	}
	b := make([]byte, 10, maxResponse) // tag, size, code
	if _, err := io.ReadFull(c, b); err != nil {
		return nil, fmt.Errorf("reading the TPM's response: %w", err)
	}
	size := binary.BigEndian.Uint32(b[2:])
	if size < 10 || size > maxResponse {
		return nil, fmt.Errorf("the TPM's response claims to have %d bytes", size)
	}
	b = b[:size]
	if _, err := io.ReadFull(c, b[10:]); err != nil {
		return nil, fmt.Errorf("reading the TPM's response: %w", err)
	}
	return b, nil
}
