package netboot

import (
	"net/netip"
	"testing"
	"time"
)

// Firmware asks for its file before the packet is read that says who it is.
func TestClientSoon(t *testing.T) {
	ip := netip.MustParseAddr("10.77.0.211")
	known := Client{MAC: "52:54:00:77:00:03", Kind: KindUEFIPXE, Arch: ArchX64, HasArch: true}
	for _, tt := range []struct {
		name  string
		mode  Mode
		comes bool
		want  Kind
	}{
		{"overheard a moment later", ModeProxy, true, KindUEFIPXE},
		{"never heard of", ModeProxy, false, KindOS},
		{"a stranger on a network of our own", ModeServer, false, KindOS},
	} {
		e := &engine{cfg: Config{Mode: tt.mode}, pool: &pool{}, book: &book{}, now: time.Now}
		asked := make(chan Client)
		go func() { asked <- e.clientSoon(t.Context(), ip, "tftp") }()
		if tt.comes {
			e.book.put(ip, known, time.Now())
		}
		if c := <-asked; c.Kind != tt.want || c.IP != ip || c.Via != "tftp" {
			t.Errorf("%s: %+v; want kind %s", tt.name, c, tt.want)
		}
	}
}
