package netboot

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// Every packet has a line that says what became of it and why.
func TestTrace(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	var traces []Trace
	b.s.engine.trace = func(t Trace) { traces = append(traces, t) }
	b.s.engine.now = func() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }
	b.raw(packets(t)["P09"], wire)
	b.raw(packets(t)["P07"], wire)
	b.send(pxe(packet(msgDiscover, mac1), 7), wire)
	b.send(packet(msgDiscover, mac2), wire)
	b.send(packet(msgRequest, mac2, 50, us), wire)
	b.send(pxe(packet(msgDiscover, mac3), 0), wire)
	want := []string{
		"03:04:05.000 br0 unidentified client 249 bytes from 0.0.0.0:68 -> silence: malformed: ",
		"-> silence: not a DHCP request",
		"DISCOVER (uefi-pxe amd64) -> OFFER by frame to 10.77.0.",
		"DISCOVER (os) -> OFFER by frame to 10.77.0.",
		"REQUEST (os) -> NAK by broadcast to 255.255.255.255:68: 10.77.0.1 is not free for this client",
		"DISCOVER (bios 386) -> silence: BIOS firmware cannot start a UKI",
	}
	if len(traces) != len(want) {
		t.Fatalf("%d traces; want %d", len(traces), len(want))
	}
	for i, w := range want {
		if got := traces[i].String(); !strings.Contains(got, w) {
			t.Errorf("trace %d: %s\nwant %s", i, got, w)
		}
	}
	if got := traces[2].String(); !strings.HasSuffix(got, "file="+blob.File+": test") {
		t.Errorf("offer: %s", got)
	}
	readByTcpdump(t, traces)
}

// readByTcpdump has the reference tool read our captures.
func readByTcpdump(t *testing.T, traces []Trace) {
	t.Helper()
	wiretest.NeedTool(t, "tcpdump")
	var file bytes.Buffer
	if err := PcapHeader(&file); err != nil {
		t.Fatal(err)
	}
	for _, tr := range traces {
		if err := tr.Pcap(&file); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("tcpdump", "-nvr", path).CombinedOutput()
	if err != nil {
		t.Fatalf("tcpdump: %v\n%s", err, out)
	}
	for _, w := range []string{"DHCP-Message (53), length 1: Offer", "DHCP-Message (53), length 1: NACK", `file "` + blob.File + `"`, "10.77.0.1.67 > 255.255.255.255.68"} {
		if !strings.Contains(string(out), w) {
			t.Errorf("tcpdump does not see %q:\n%s", w, out)
		}
	}
	if strings.Contains(string(out), "bad udp cksum") || strings.Contains(string(out), "bad cksum") {
		t.Errorf("tcpdump sees bad checksums:\n%s", out)
	}
}

func TestExplain(t *testing.T) {
	cfg := rackConfig()
	cfg.Ports.HTTP = 8080
	cfg.Profiles = []ProfileRule{{MAC: "0C:42:A1", CPU: "arm64", Profile: ProfileDirect}, {VendorClass: "PXEClient:Arch:00007:UNDI:003016", Profile: ProfileHeader}}
	b := newBench(t, cfg, always(blob))
	for _, tc := range []struct {
		name     string
		c        Client
		silent   bool
		profile  Profile
		download string
	}{
		{"PXE", Client{MAC: mac1, Kind: KindUEFIPXE, Arch: ArchX64, HasArch: true}, false, ProfileAuto, "tftp://10.77.0.1/" + file},
		{"HTTP", Client{MAC: mac1, Kind: KindUEFIHTTP, Arch: ArchX64HTTP, HasArch: true}, false, ProfileAuto, "http://10.77.0.1:8080/" + file},
		{"model by MAC", Client{MAC: "0c:42:a1:00:00:01", Kind: KindUEFIPXE, Arch: ArchARM64, HasArch: true}, false, ProfileDirect, "tftp://10.77.0.1/" + file},
		{"BIOS", Client{MAC: mac1, Kind: KindBIOS, HasArch: true}, true, ProfileAuto, ""},
		{"system", Client{MAC: mac1, Kind: KindOS}, false, ProfileAuto, ""},
	} {
		x, err := b.s.Explain(t.Context(), tc.c)
		if err != nil || x.Silent != tc.silent || x.Profile != tc.profile || x.Download != tc.download || x.Why == "" {
			t.Errorf("%s: %+v, %v", tc.name, x, err)
		}
	}
	if n := len(b.s.LeaseTable()); n != 0 {
		t.Errorf("explaining leased %d addresses", n)
	}
	// What is explained is what happens.
	r := b.must(pxe(packet(dhcpv4.MessageTypeDiscover, mac1), 7), wire, msgOffer)
	if opt(r, 67) != "" || r.msg.BootFileName != file {
		t.Errorf("rule for the vendor class was not applied: 67 %q", opt(r, 67))
	}
}
