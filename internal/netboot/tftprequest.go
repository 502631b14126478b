package netboot

import (
	"bytes"
	"fmt"
	"path"
	"strconv"
	"strings"
)

// TFTP opcodes (RFC 1350 section 5, RFC 2347) and error codes.
const (
	opRRQ   = 1
	opWRQ   = 2
	opDATA  = 3
	opACK   = 4
	opERROR = 5
	opOACK  = 6

	tftpUndefined = 0
	tftpNotFound  = 1
	tftpDenied    = 2
	tftpIllegal   = 4
)

// Bounds of the TFTP options (RFC 2348, 2349, 7440). The library takes no
// block smaller than the default.
const (
	defaultBlock = 512
	maxBlock     = 65464
)

// readRequest is a parsed RRQ.
type readRequest struct {
	raw     string // file name as it came, for logs
	name    string // cleaned
	block   int    // 0: not asked for, or unusable
	window  int    // 0: likewise
	timeout int    // seconds, 0: likewise
	size    bool   // tsize asked for
	order   []string
}

// requestError is a refusal with its TFTP error code.
type requestError struct {
	code byte
	text string
}

func (e *requestError) Error() string { return e.text }

// parseRRQ reads a request packet. Mode and options are matched in any case;
// "netascii" and "octet" both get the bytes as they are, since converting a
// kernel would only break it. Options with unusable values are dropped, as
// RFC 2347 allows.
func parseRRQ(b []byte) (readRequest, *requestError) {
	var r readRequest
	if len(b) < 4 || b[0] != 0 {
		return r, &requestError{tftpIllegal, "malformed request"}
	}
	switch b[1] {
	case opRRQ:
	case opWRQ:
		return r, &requestError{tftpDenied, "this server is read-only"}
	default:
		return r, &requestError{tftpIllegal, "not a request"}
	}
	fields := bytes.Split(b[2:], []byte{0})
	if len(fields) < 3 { // name, mode and what follows the NUL behind it
		return r, &requestError{tftpIllegal, "malformed request"}
	}
	r.raw = string(fields[0])
	switch strings.ToLower(string(fields[1])) {
	case "octet", "netascii", "binary":
	default:
		return r, &requestError{tftpIllegal, "transfer mode is not supported, use octet"}
	}
	name, ok := cleanName(r.raw)
	if !ok {
		return r, &requestError{tftpDenied, "file name is not allowed"}
	}
	r.name = name
	for i := 2; i+1 < len(fields); i += 2 {
		r.option(strings.ToLower(string(fields[i])), string(fields[i+1]))
	}
	return r, nil
}

func (r *readRequest) option(name, value string) {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return
	}
	switch {
	case name == "blksize" && n >= defaultBlock && n <= maxBlock && r.block == 0:
		r.block = n
	case name == "windowsize" && n >= 1 && n <= 65535 && r.window == 0:
		r.window = n
	case name == "timeout" && n >= 1 && n <= 255 && r.timeout == 0:
		r.timeout = n
	case name == "tsize" && !r.size:
		r.size = true
	default:
		return
	}
	r.order = append(r.order, name)
}

// oack builds the option acknowledgement, in the order of the request. It
// returns nil if nothing was asked for that can be granted.
func (r *readRequest) oack(block, window int, size int64) []byte {
	if len(r.order) == 0 {
		return nil
	}
	b := []byte{0, opOACK}
	for _, name := range r.order {
		v := int64(0)
		switch name {
		case "blksize":
			v = int64(block)
		case "windowsize":
			v = int64(window)
		case "timeout":
			v = int64(r.timeout)
		case "tsize":
			v = size
		}
		b = fmt.Appendf(b, "%s\x00%d\x00", name, v)
	}
	return b
}

func errorPacket(code byte, text string) []byte {
	return append(append([]byte{0, opERROR, 0, code}, text...), 0)
}

// cleanName maps what firmware makes of a file name to the one we gave it:
// backslashes, leading and double slashes, trailing bytes read from behind
// the end of the option. Names that climb ("..") or hold control characters
// are refused rather than repaired.
func cleanName(s string) (string, bool) {
	s = strings.TrimRightFunc(s, func(r rune) bool { return r == 0 || r == ' ' || r == 0xfffd || r == 0xff })
	s = strings.ReplaceAll(s, `\`, "/")
	for _, b := range []byte(s) {
		if b < 0x20 || b > 0x7e {
			return "", false
		}
	}
	for _, part := range strings.Split(s, "/") {
		if part == ".." {
			return "", false
		}
	}
	s = strings.TrimPrefix(path.Clean("/"+s), "/")
	return s, s != ""
}
