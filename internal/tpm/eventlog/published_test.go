package eventlog

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"go/ast"
	goparser "go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// publication is a file in which the makers of a module published what a TPM
// held when one of their logs was read. The values are taken from the file
// itself, so that none can be copied wrongly, or be ours.
type publication struct {
	module string // as in the module cache
	values string // a Go test, or a dump in JSON
	embeds string // Go file that says which variable holds which log; "" for tests that name files
	rtmr   bool   // values are RTMRs of a TDX guest, which the log numbers from 1
}

var publications = []publication{
	{module: "github.com/google/go-eventlog@v0.0.2", values: "tpmeventlog/replay_test.go", embeds: "testdata/eventlog_data.go"},
	{module: "github.com/google/go-eventlog@v0.0.2", values: "ccel/replay_test.go", rtmr: true},
	{module: "github.com/google/go-tpm-tools@v0.4.7", values: "server/eventlog_test.go", embeds: "internal/test/test_data.go"},
	{module: "github.com/google/go-attestation@v0.6.4", values: "attest/secureboot_test.go"},
	{module: "github.com/google/go-attestation@v0.6.4", values: "attest/testdata/windows_gcp_shielded_vm.json"},
	{module: "github.com/google/go-eventlog@v0.0.2", values: "testdata/legacydata/linux_tpm12.json"},
}

// publishedPCR is one value. Its bank is told by its length.
type publishedPCR struct {
	pcr   int
	value []byte
}

// unpublished are the logs of these modules beside which there is no value of
// any TPM, with what they are held against instead.
var unpublished = map[string]string{
	"coreos_36_shielded_vm_no_secure_boot_eventlog": "testdata/eventlog-pcrs.json",
	"crypto_agile_eventlog":                         "testdata/eventlog-pcrs.json",
	"short_no_action_eventlog":                      "TestStartupLocality: one event that extends nothing",
	"ebs_event_missing_eventlog":                    "TestMissingEvents: PCR 5 only, from go-attestation's TestEBSVerifyWorkaround",
	"CCEL.bin":                                      "an ACPI table, not a log",
	"cos-113-intel-tdx.table.bin":                   "an ACPI table, not a log",
	"event_log.bin":                                 "TestEveryRealLog: replays as tpm2_eventlog says",
	"CCEL_unpadded.data.bin":                        "TestEveryRealLog: replays as tpm2_eventlog says",
	"cos-113-intel-tdx-dupe-separator-unpadded.bin": "the padded one is held against its RTMRs",
}

// TestPublishedPCRs replays every real log to the values that a TPM held, in
// every bank for which some were published.
func TestPublishedPCRs(t *testing.T) {
	seen := map[string]bool{}
	for _, p := range publications {
		for file, pcrs := range p.read(t) {
			seen[path.Base(file)] = true
			t.Run(filepath.Base(p.module)+"/"+path.Base(file), func(t *testing.T) {
				checkPublished(t, p, file, pcrs)
			})
		}
	}
	for _, m := range []string{"github.com/google/go-attestation@v0.6.4", "github.com/google/go-eventlog@v0.0.2", "github.com/google/go-tpm-tools@v0.4.7"} {
		for _, file := range logFiles(t, module(t, m)) {
			if b := path.Base(file); !seen[b] && unpublished[b] == "" && !sameAs(t, file, seen) {
				t.Errorf("%s of %s is held against nothing", b, m)
			}
		}
	}
}

// sameAs reports whether a file is a copy, under another name, of a log that
// was checked.
func sameAs(t *testing.T, file string, seen map[string]bool) bool {
	return seen[strings.NewReplacer("_", "-", "shielded-vm-", "", "-eventlog", ".bin").Replace(strings.ReplaceAll(path.Base(file), "_", "-"))]
}

func checkPublished(t *testing.T, p publication, file string, pcrs []publishedPCR) {
	l, err := Parse(rawLog(t, file))
	if err != nil {
		t.Fatal(err)
	}
	checked := map[string]int{}
	for _, x := range pcrs {
		bank := map[int]string{20: "sha1", 32: "sha256", 48: "sha384"}[len(x.value)]
		index := x.pcr
		if p.rtmr {
			index++
		}
		got, n := l.ReplayPCR(bank, index, len(l.Events))
		if !l.Has(bank) || n == 0 && afterFirmware(index) {
			continue
		}
		if hex.EncodeToString(got) != hex.EncodeToString(x.value) {
			t.Errorf("%s PCR %d of %s replays to %x; the TPM had %x", bank, index, path.Base(file), got, x.value)
		}
		checked[bank]++
	}
	if len(checked) == 0 {
		t.Errorf("nothing was published for %s", path.Base(file))
	}
	t.Logf("%d events, %d bytes; values of a TPM that were met: %v", len(l.Events), len(rawLog(t, file)), checked)
}

// afterFirmware says of which PCRs the firmware's log need not tell: the
// kernel's IMA has 10, user space the others, and from 16 on they are no
// matter of the boot.
func afterFirmware(pcr int) bool { return pcr >= 8 }

// rawLog reads a log, or the one within a dump.
func rawLog(t *testing.T, file string) []byte {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(file, ".json") {
		return b
	}
	return readDump(t, b).Log.Raw
}

type dump struct {
	Log struct {
		PCRs []struct {
			Index  int
			Digest []byte
		}
		Raw []byte
	}
}

func readDump(t *testing.T, b []byte) (d dump) {
	if err := json.Unmarshal(b, &d); err != nil || len(d.Log.Raw) == 0 {
		t.Fatalf("dump: %v", err)
	}
	return d
}

// read returns the published values by log file.
func (p publication) read(t *testing.T) map[string][]publishedPCR {
	root := module(t, p.module)
	file := filepath.Join(root, p.values)
	out := map[string][]publishedPCR{}
	if strings.HasSuffix(file, ".json") {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range readDump(t, b).Log.PCRs {
			out[file] = append(out[file], publishedPCR{x.Index, x.Digest})
		}
		return out
	}
	src, err := goparser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	embeds := readEmbeds(t, root, p.embeds)
	decls := map[string][]ast.Node{} // by log
	for _, d := range src.Decls {
		for _, log := range logsIn(d, filepath.Dir(file), embeds) {
			decls[log] = append(decls[log], d)
		}
	}
	for log, ds := range decls {
		for _, d := range ds {
			out[log] = append(out[log], pcrsIn(d)...)
		}
		if len(out[log]) == 0 {
			delete(out, log)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s publishes nothing", file)
	}
	return out
}

// readEmbeds returns which variable of a Go file holds which file.
func readEmbeds(t *testing.T, root, file string) map[string]string {
	out := map[string]string{}
	if file == "" {
		return out
	}
	b, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`//go:embed (\S+)\s+(\w+) \[\]byte`).FindAllStringSubmatch(string(b), -1) {
		out[m[2]] = filepath.Join(root, filepath.Dir(file), m[1])
	}
	return out
}

// logsIn returns the logs that a declaration names: in the field RawLog, or
// as the first file that it reads.
func logsIn(d ast.Node, dir string, embeds map[string]string) (logs []string) {
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.KeyValueExpr:
			sel, ok := n.Value.(*ast.SelectorExpr)
			if ok && fmt.Sprint(n.Key) == "RawLog" && embeds[sel.Sel.Name] != "" {
				logs = append(logs, embeds[sel.Sel.Name])
			}
		case *ast.BasicLit:
			s, err := strconv.Unquote(n.Value)
			if err == nil && n.Kind == token.STRING && strings.Contains(s, "testdata/") && len(logs) == 0 && !strings.HasSuffix(s, ".json") {
				logs = append(logs, filepath.Join(dir, s))
			}
		}
		return true
	})
	return logs
}

// pcrsIn collects the values in a declaration: {5, digest, …},
// {Index: 5, Digest: digest}, or 5: digest in a map; an index may stand for a
// variable that holds the digest.
func pcrsIn(d ast.Node) (out []publishedPCR) {
	vars := map[string][]byte{}
	add := func(index, value ast.Expr) {
		i, ok := number(index)
		v := octets(value)
		if id, is := value.(*ast.Ident); is {
			v = vars[id.Name]
		}
		if ok && (len(v) == 20 || len(v) == 32 || len(v) == 48) {
			out = append(out, publishedPCR{i, v})
		}
	}
	ast.Inspect(d, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if id, ok := n.Lhs[0].(*ast.Ident); ok && len(n.Rhs) == 1 {
				vars[id.Name] = octets(n.Rhs[0])
			}
		case *ast.KeyValueExpr:
			add(n.Key, n.Value)
		case *ast.CompositeLit:
			fields := map[string]ast.Expr{}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok {
					fields[fmt.Sprint(kv.Key)] = kv.Value
				}
			}
			switch {
			case fields["Index"] != nil && fields["Digest"] != nil:
				add(fields["Index"], fields["Digest"])
			case len(n.Elts) >= 3 && len(fields) == 0:
				add(n.Elts[0], n.Elts[1])
			}
		}
		return true
	})
	return out
}

func number(e ast.Expr) (int, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok {
		return 0, false
	}
	if l.Kind == token.CHAR {
		s, err := strconv.Unquote(l.Value)
		return int([]rune(s + "\x00")[0]), err == nil
	}
	i, err := strconv.Atoi(l.Value)
	return i, err == nil
}

// octets evaluates []byte("…"), a call of a decoder of hexadecimal or base64
// digits, and []byte{…}.
func octets(e ast.Expr) []byte {
	switch e := e.(type) {
	case *ast.CompositeLit:
		var out []byte
		for _, x := range e.Elts {
			l, ok := x.(*ast.BasicLit)
			if !ok {
				return nil
			}
			b, err := strconv.ParseUint(l.Value, 0, 8)
			if err != nil {
				return nil
			}
			out = append(out, byte(b))
		}
		return out
	case *ast.CallExpr:
		if len(e.Args) != 1 {
			return nil
		}
		l, ok := e.Args[0].(*ast.BasicLit)
		if !ok || l.Kind != token.STRING {
			return nil
		}
		s, err := strconv.Unquote(l.Value)
		if err != nil {
			return nil
		}
		var b []byte
		switch name := fmt.Sprint(e.Fun); {
		case name == "decodeHex":
			b, err = hex.DecodeString(s)
		case name == "b64MustDecode":
			b, err = base64.StdEncoding.DecodeString(s)
		default:
			b = []byte(s)
		}
		if err != nil {
			return nil
		}
		return b
	}
	return nil
}

// logFiles lists everything below a module's test data that looks like a log.
func logFiles(t *testing.T, root string) (out []string) {
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(p, "testdata/") && !strings.Contains(p, "/eventlogs/") {
			return err
		}
		if strings.HasSuffix(p, ".bin") || strings.HasSuffix(p, "_eventlog") || strings.HasSuffix(p, "_vm.json") || strings.HasSuffix(p, "tpm12.json") {
			out = append(out, p)
		}
		return nil
	})
	if err != nil || len(out) == 0 {
		t.Fatalf("%d logs below %s: %v", len(out), root, err)
	}
	return out
}
