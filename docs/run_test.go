package docs_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// world is where the commands of one document are run: a folder of work, and
// folders that stand for /etc/turnout and /var/lib/turnout in a mount
// namespace of their own, beside a network of their own.
type world struct {
	t    *testing.T
	dir  string
	bin  string // our programs
	self string // this test, as a program: the site's other machines
}

// mode is what a block of commands finds.
type mode int

const (
	running mode = iota // a server that runs and has a fleet
	stopped             // the same, stopped
	bare                // a folder with the recipes, nothing else
)

// begins says what blocks find, by the beginning of their first line; the
// others find a server that runs.
var begins = map[string]mode{
	"make build && export":              bare,
	"imgbuild keygen --out keys ":       bare,
	"pxeserver init --dir /etc/turnout": bare,
}

// elsewhere are lines that are run by another test, or that need what no
// test has.
var elsewhere = []struct{ line, why string }{
	{`^make `, "the Makefile's targets are what CI runs"},
	{`^apt-get `, "packages are installed in a clean Debian by make test-packages"},
	{`^systemctl `, "units are checked by make test-packages"},
	{`^(podman|sha256sum) `, "made by make release"},
	{`^openssl pkeyutl -verify`, "made by make release"},
	{`^curl … `, "says less than the whole command, the line above is run"},
	{`^pxeserver store import `, "needs a database server; TestStoreImport runs it"},
	{`^imgbuild sign .*`, "needs a security module; the command form runs in its testscripts"},
	{`^imgbuild run `, "boots a machine: the machine tests do"},
	{`nvidia`, "needs NVIDIA's packages: checked with the archive by hand, the check itself in its testscripts"},
	{`^(here|there)/|^imgbuild diff here`, "two builds: in the testscripts of imgbuild"},
	{`RECIPE|FOLDER`, "words to be replaced"},
}

// refused are lines that are meant to be refused, or are where a document is
// read without the hours that pass in it, with what is said.
var refused = []struct{ line, says string }{
	{`^pxeserver bmc set n1 .*bmc\.pw$`, "--pin"},
}

// endless are commands that end when they are interrupted.
var endless = regexp.MustCompile(`--follow|--watch|^pxeserver (serve|top|dhcp trace)|^curl .*watch`)

// TestRun runs the commands of every document as they stand there, in order,
// against a real server with a fleet, a BMC, a registry and a receiver of
// alerts, all inside a network of their own.
func TestRun(t *testing.T) {
	if os.Getenv("TURNOUT_MACHINE_TEST") == "" {
		t.Skip("set TURNOUT_MACHINE_TEST=1 to run the documents' commands (as root, with packages from the archive)")
	}
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: t.TempDir(), bin: bin, self: self}
	w.prepare()
	ran := 0
	for _, name := range sortedPages(t) {
		t.Run(strings.TrimPrefix(name, "docs/"), func(t *testing.T) { ran += w.page(t, name) })
	}
	if ran < 80 {
		t.Errorf("only %d commands were run", ran)
	}
}
