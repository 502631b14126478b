package judge_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf16"
)

// uriBoot writes a variable file of OVMF whose next boot is by HTTP: the boot
// option is a device path of nothing but the URI, which firmware completes
// with each network card it has (UEFI Specification 2.10, section 3.1.2).
func uriBoot(t *testing.T, vars, uri string) string {
	t.Helper()
	b, err := os.ReadFile(vars)
	if err != nil {
		t.Fatal(err)
	}
	le := binary.LittleEndian
	node := le.AppendUint16([]byte{3, 24}, uint16(4+len(uri))) // messaging device path, URI
	node = append(append(node, uri...), 0x7f, 0xff, 4, 0)
	option := le.AppendUint16(le.AppendUint32(nil, 1), uint16(len(node))) // active
	for _, c := range append(utf16.Encode([]rune("test")), 0) {
		option = le.AppendUint16(option, c)
	}
	b = putVariable(t, b, "Boot0000", append(option, node...))
	b = putVariable(t, b, "BootNext", []byte{0, 0})
	out := filepath.Join(t.TempDir(), "vars.fd")
	if err := os.WriteFile(out, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return out
}

// putVariable appends a global variable to a store of authenticated variables
// (edk2, MdeModulePkg/Include/Guid/VariableFormat.h).
func putVariable(t *testing.T, store []byte, name string, data []byte) []byte {
	t.Helper()
	le := binary.LittleEndian
	const header = 60
	at := int(le.Uint16(store[48:])) + 28 // past the headers of volume and store
	for le.Uint16(store[at:]) == 0x55aa {
		at += header + int(le.Uint32(store[at+36:])+le.Uint32(store[at+40:])) + 3
		at &^= 3
	}
	v := append([]byte{0xaa, 0x55, 0x3f, 0, 7, 0, 0, 0}, make([]byte, 8+16+4)...) // added; kept, at boot and at run time
	v = le.AppendUint32(v, uint32(2*len(name)+2))
	v = le.AppendUint32(v, uint32(len(data)))
	v = append(v, 0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c)
	for _, c := range name + "\x00" {
		v = append(v, byte(c), 0)
	}
	v = append(v, data...)
	if at+len(v) > len(store) || !bytes.Equal(store[at:at+len(v)], bytes.Repeat([]byte{0xff}, len(v))) {
		t.Fatalf("no room for %s at %#x of the variable file", name, at)
	}
	copy(store[at:], v)
	return store
}

// serve offers a program over HTTP where QEMU's user network finds it, and
// counts how often it was taken.
func serve(t *testing.T, program []byte) (uri string, taken *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	taken = new(atomic.Int64)
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			taken.Add(1)
		}
		http.ServeContent(w, r, "uki.efi", time.Time{}, bytes.NewReader(program))
	})}
	go s.Serve(l)                   //nolint:errcheck // ends with the test
	t.Cleanup(func() { s.Close() }) //nolint:errcheck // the end of a test
	return "http://10.0.2.2:" + strconv.Itoa(l.Addr().(*net.TCPAddr).Port) + "/uki.efi", taken
}
