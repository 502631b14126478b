package deb

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
	"golang.org/x/sys/unix"
)

// maxDictBytes bounds the window that a compressed member may ask for.
// dpkg-deb writes at most 64 MiB (xz -9).
const maxDictBytes = 256 << 20

// smallXZ is the compressed size below which Go is faster than starting a
// program: most control members.
const smallXZ = 16 << 10

// open returns a reader of member m's tar archive, which ends with an error
// wrapping ErrHostile behind limit bytes.
func (p *Package) open(m member, limit int64) (io.ReadCloser, error) {
	src := io.NewSectionReader(p.src, m.offset, m.size)
	_, suffix, _ := strings.Cut(m.name, ".tar")
	r, err := p.decompress(suffix, src)
	if err != nil {
		return nil, fmt.Errorf("member %q: %w", m.name, err)
	}
	return &limited{ReadCloser: r, left: limit, limit: limit}, nil
}

func (p *Package) decompress(suffix string, src *io.SectionReader) (io.ReadCloser, error) {
	switch suffix {
	case "":
		return io.NopCloser(src), nil
	case ".gz":
		return gzip.NewReader(src)
	case ".zst":
		z, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxDictBytes))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case ".xz":
		if prog := p.xzProgram(); prog != "" && src.Size() >= smallXZ {
			return pipeXZ(prog, src)
		}
		return goXZ(src)
	}
	return nil, fmt.Errorf("compression %q is not one of none, gz, xz, zst", suffix)
}

func (p *Package) xzProgram() string {
	switch p.opts.XZ {
	case "":
		return xzInPath()
	case "none":
		return ""
	}
	return p.opts.XZ
}

// goXZ decompresses in this process.
func goXZ(src *io.SectionReader) (io.ReadCloser, error) {
	if err := checkXZWindow(src); err != nil {
		return nil, err
	}
	r, err := xz.NewReader(bufio.NewReaderSize(src, 64<<10))
	if err != nil {
		return nil, err
	}
	return io.NopCloser(r), nil
}

// checkXZWindow refuses a first block that asks for a window beyond
// maxDictBytes, before the decoder reserves it. (The xz file format, sections
// 2.1.1 and 3.1: a stream header of 12 bytes, then the block header: size,
// flags, optional sizes, filters.) Blocks behind it reserve address space
// only, of which no more is touched than Limits allow to be decompressed.
func checkXZWindow(src io.ReaderAt) error {
	head := make([]byte, 12+64)
	n, _ := src.ReadAt(head, 0)
	if n < 16 {
		return io.ErrUnexpectedEOF
	}
	block := head[12:n]
	if block[0] == 0 { // no block: an empty stream
		return nil
	}
	flags, rest := block[1], block[2:]
	for range int(flags>>6&1) + int(flags>>7) { // compressed and uncompressed size, varints
		for len(rest) > 0 && rest[0]&0x80 != 0 {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return io.ErrUnexpectedEOF
		}
		rest = rest[1:]
	}
	const lzma2, size = 0x21, 1
	if len(rest) < 3 || rest[0] != lzma2 || rest[1] != size {
		return errors.New("xz filter other than LZMA2")
	}
	if bits := rest[2]; bits >= 40 || (2|uint64(bits&1))<<(bits/2+11) > maxDictBytes {
		return fmt.Errorf("xz window over %d MiB: %w", maxDictBytes>>20, ErrHostile)
	}
	return nil
}

// piped is the output of a program that decompresses.
type piped struct {
	io.ReadCloser
	cmd    *exec.Cmd
	stderr *bytes.Buffer
	done   bool
	err    error
}

// pipeXZ decompresses with the xz program.
func pipeXZ(prog string, src io.Reader) (io.ReadCloser, error) {
	p := &piped{stderr: new(bytes.Buffer)}
	p.cmd = exec.Command(prog, "--decompress", "--stdout", "--quiet", "--threads=1",
		fmt.Sprintf("--memlimit-decompress=%d", 2*maxDictBytes))
	p.cmd.Env = []string{"LC_ALL=C"} // XZ_OPT and XZ_DEFAULTS of the caller do not count
	p.cmd.Stdin = src
	p.cmd.Stderr = p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	widen(out)
	p.ReadCloser = out
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", prog, err)
	}
	return p, nil
}

// widen enlarges a pipe, which saves most of its context switches. That it
// may fail is no matter.
func widen(pipe io.Reader) {
	f, ok := pipe.(syscall.Conn)
	if !ok {
		return
	}
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, 1<<20) })
	}
}

func (p *piped) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if err == io.EOF {
		if werr := p.wait(); werr != nil {
			return n, werr
		}
	}
	return n, err
}

func (p *piped) wait() error {
	if !p.done {
		p.done = true
		if err := p.cmd.Wait(); err != nil {
			p.err = fmt.Errorf("xz: %w: %s", err, bytes.TrimSpace(p.stderr.Bytes()))
		}
	}
	return p.err
}

// Close ends the program, whether it has finished or not.
func (p *piped) Close() error {
	if !p.done {
		_ = p.cmd.Process.Kill()
		_ = p.ReadCloser.Close()
		_ = p.wait()
	}
	return nil
}

// limited ends with ErrHostile behind its limit.
type limited struct {
	io.ReadCloser
	left, limit int64
}

func (l *limited) Read(b []byte) (int, error) {
	if int64(len(b)) > l.left+1 {
		b = b[:l.left+1]
	}
	n, err := l.ReadCloser.Read(b)
	l.left -= int64(n)
	if l.left < 0 {
		return 0, fmt.Errorf("more than %d bytes decompressed: %w", l.limit, ErrHostile)
	}
	return n, err
}
