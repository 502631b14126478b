package docs_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/fleet/sample"
	"github.com/turnout-project/turnout/internal/oci/registry/registrytest"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/sqlite"
	"github.com/turnout-project/turnout/internal/vmtest"
	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// site is the place the documents speak of: a build host and a server in one,
// with the other machines that commands talk to.
type site struct {
	t        *testing.T
	dir      string // etc, var, backup, work, keep
	bin      string // the programs
	rack     *vmtest.Rack
	packages string // the store of packages
	pin      string // of the BMC's certificate
	server   *exec.Cmd
	ended    chan struct{} // closed when server has ended
}

const operator = "pxeserver --config /etc/turnout/pxeserver.yaml "

// newSite makes the site: keys, an image built from its recipe, and a server
// with a fleet.
func newSite(t *testing.T) *site {
	t.Helper()
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: t.TempDir(), bin: bin, packages: os.Getenv("TURNOUT_TEST_STORE")}
	if s.packages == "" {
		s.packages, err = filepath.Abs("../.cache/store") // as the demo's
		s.must(err)
	}
	s.must(os.MkdirAll(s.packages, 0o755))
	if s.rack, err = vmtest.NewRack(filepath.Join(s.dir, "rack")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop(t)
		if err := s.rack.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"/etc/turnout", "/var/lib/turnout", "/var/cache/turnout"} { // to mount on
		if _, err := os.Stat(d); os.IsNotExist(err) {
			s.must(os.Mkdir(d, 0o755))
			t.Cleanup(func() { os.Remove(d) })
		}
	}
	outside, err := os.Open("/proc/thread-self/ns/net") // where the archive is
	s.must(err)
	t.Cleanup(func() { outside.Close() })
	s.programs(outside)
	s.neighbours()
	s.clear(t)
	for _, line := range []string{
		"imgbuild keygen --out keys",
		"pxeserver init --dir /etc/turnout --address 10.77.0.1 --interface rack0 --subnet 10.77.0.0/24 --image-key keys/image.pub",
		"cp /etc/turnout/ca.pem /etc/turnout/operator.token . && mkdir $HOME/turnout && cp ca.pem $HOME/turnout/ && cp operator.token $HOME/turnout/token",
		"echo s3cret > bmc.pw && echo firmware > bios-2.4.bin",
		"imgbuild sbkeys --out keys/secureboot",
		"imgbuild lock recipes/rack-base.yaml",
	} {
		s.run(line)
	}
	for _, v := range []string{"1.0.0", "1.1.0", "1"} {
		s.run(fmt.Sprintf(`sed 's/^version: .*/version: "%[1]s"/' recipes/rack-base.yaml > recipes/that.yaml &&
imgbuild build recipes/that.yaml --lock recipes/rack-base.lock.json --key keys/image.key --server-ca ca.pem --out images/%[1]s`, v))
	}
	s.run("mv images/1 images/rack-base && rm recipes/that.yaml")
	s.alerts()
	s.start(t)
	s.run("for i in images/*; do " + operator + "image publish $i || exit; done")
	s.run("for p in canary dev inference rack train; do " + operator + "pool set $p --image 'rack-base 1.0.0' || exit; done")
	s.stop(t)
	s.populate(t)
	s.start(t)
	s.run("for n in $(" + operator + "node list -o json | jq -r '.[] | select(.pool == \"rack\") | .name'); do " + operator +
		"bmc set $n --address 10.0.9.1 --user turnout --password-file bmc.pw --pin " + s.pin + " || exit; done")
	s.stop(t)
	s.keep()
	return s
}

// alerts has the server tell the hooks of docs/alerts.md.
func (s *site) alerts() {
	s.run(`cp ../site-ca.pem /etc/turnout/chat-ca.pem
umask 077; for n in pager chat; do openssl rand -hex 32 > /etc/turnout/$n.secret; done
sed -i 's|^alerts: \[\]|alerts:\n  - {name: pager, url: "https://pager.example/hooks/turnout", secret_file: pager.secret, ca_file: chat-ca.pem, kinds: [node.lost, recovery.]}\n  - {name: chat, url: "https://chat.example/incoming/T0", secret_file: chat.secret, ca_file: chat-ca.pem}|' /etc/turnout/pxeserver.yaml
grep -q pager.example /etc/turnout/pxeserver.yaml`)
}

// state opens the state of the server, which must not run.
func (s *site) state(t *testing.T, do func(tx store.Tx) error) {
	t.Helper()
	st, err := sqlite.Open(t.Context(), s.stateFile())
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := st.Update(t.Context(), do); err != nil {
		t.Fatal(err)
	}
}

func (s *site) stateFile() string { return filepath.Join(s.dir, "var", "fleet.db") }

// waiting is the machine that waits for approval in all documents.
func waiting() *fleet.Node {
	return &fleet.Node{Name: "new-3f2a9c01", Pool: "default", MACs: []fleet.MAC{"52:54:00:12:34:56"}, State: fleet.NodePending,
		EKHash: "3f2a9c01" + strings.Repeat("0", 56), Reason: "discovered, waits for an operator", Created: time.Now()}
}

// populate gives the server the nodes and rollouts that documents name.
func (s *site) populate(t *testing.T) {
	s.state(t, func(tx store.Tx) error {
		images, err := tx.Images(t.Context())
		if err != nil {
			return err
		}
		of := map[string]*fleet.Image{}
		for _, i := range images {
			of[i.Version] = i
		}
		now := time.Now()
		nodes := []*fleet.Node{waiting()}
		for pool, names := range map[string]string{"canary": "n3", "rack": "n1 n2 n7 r1-n01 r1-n07", "train": "t1 t2 t3 t4", "inference": "i1", "dev": "d1"} {
			for _, name := range strings.Fields(names) {
				n := sample.Node(name, pool, of["1.0.0"], of["1"], now)
				n.Domain = "r7"
				if name == "t2" { // rollout r7 has been here
					n = sample.Node(name, pool, of["1.1.0"], of["1.0.0"], now)
					n.Desired.Rollout = "r7"
				}
				nodes = append(nodes, n)
			}
		}
		for _, n := range nodes {
			if err := tx.CreateNode(t.Context(), n); err != nil {
				return err
			}
		}
		for i := 1; i <= 7; i++ { // r7 is under way
			r := &fleet.Rollout{Image: of["1.0.0"].Digest, State: fleet.RolloutDone, By: "operator:alice", Created: now, Updated: now,
				Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "train"}}, MaxUnavailable: fleet.Amount{Nodes: 1}},
				Nodes:  []fleet.Move{{Node: "t1", State: fleet.MoveDone, From: of["1"].Digest, Generation: 2, Started: now, Ended: now}}}
			if i == 7 {
				r.State, r.Image, r.Nodes[0].Node, r.Nodes[0].From = fleet.RolloutRunning, of["1.1.0"].Digest, "t2", of["1.0.0"].Digest
				for _, n := range []string{"t3", "t4"} {
					r.Nodes = append(r.Nodes, fleet.Move{Node: n, State: fleet.MoveWaiting})
				}
			}
			if err := tx.CreateRollout(t.Context(), r); err != nil {
				return err
			}
		}
		return nil
	})
}

// run runs a line that prepares the site.
func (s *site) run(line string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // bounds a hang only
	defer cancel()
	if out, err := s.shell(ctx, line).CombinedOutput(); err != nil {
		s.t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// clear empties the site's folders; the recipes come back.
func (s *site) clear(t *testing.T) {
	t.Helper()
	script := fmt.Sprintf("cp=$PWD/../recipes; cd %[1]s && rm -rf etc var backup work home && mkdir -p etc var backup/backup work home && cp -r $cp work/ && echo 'export PATH=%[1]s/bin:$PATH HOME=%[1]s/home SSL_CERT_FILE=%[1]s/roots.pem CURL_CA_BUNDLE=%[1]s/roots.pem DOCKER_CONFIG=%[1]s/home' > env", s.dir)
	if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// keep keeps the folders as they are, for reset.
func (s *site) keep() {
	if out, err := exec.Command("bash", "-c", fmt.Sprintf("cd %s && mkdir keep && cp -a etc var backup work home env keep/", s.dir)).CombinedOutput(); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
}

// reset brings the site into a situation.
func (s *site) reset(t *testing.T, to situation) {
	t.Helper()
	s.stop(t)
	s.clear(t)
	if to == bare {
		return
	}
	what := "etc var backup work home env"
	if to == built {
		what = "work home env"
	}
	if out, err := exec.Command("bash", "-c", fmt.Sprintf("cd %s && rm -rf %s && cd keep && cp -a %[2]s ../", s.dir, what)).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if to != built {
		s.start(t)
	}
}

// start starts the server and waits until it answers.
func (s *site) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "server.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.server = s.shell(context.Background(), "exec "+operator+"serve")
	s.server.Stdout, s.server.Stderr = log, log
	if err := s.server.Start(); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute) // bounds a hang only
	ended := make(chan struct{})
	go func(cmd *exec.Cmd) { cmd.Wait(); close(ended) }(s.server) //nolint:errcheck // what it says is in its log
	s.ended = ended
	for s.shell(context.Background(), operator+"node list").Run() != nil {
		over := time.Now().After(deadline)
		select {
		case <-ended:
			over = true
		default:
		}
		if over {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("the server does not answer:\n%s", text)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *site) stop(t *testing.T) {
	if s.server == nil {
		return
	}
	if err := s.server.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	<-s.ended
	s.server = nil
}

// neighbours starts what commands talk to: BMCs at 10.0.9.1, and at 10.0.9.9
// a registry, a receiver of alerts and a feed of vulnerabilities.
func (s *site) neighbours() {
	for _, a := range []string{"10.0.9.1/24", "10.0.9.9/24"} {
		s.must(s.rack.Command(context.Background(), "ip", "addr", "add", a, "dev", vmtest.Bridge).Run())
	}
	ca, caPEM, _, err := server.NewCA(time.Now())
	s.must(err)
	roots, err := os.ReadFile("/etc/ssl/certs/ca-certificates.crt")
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.dir, "roots.pem"), append(roots, caPEM...), 0o600))
	s.must(os.WriteFile(filepath.Join(s.dir, "site-ca.pem"), caPEM, 0o600))
	names := []string{"registry.example", "pager.example", "chat.example", "security-tracker.debian.org"}
	own, err := os.ReadFile("/etc/hosts")
	s.must(err)
	hosts := string(own) + "\n10.77.0.1 pxeserver.turnout.internal\n"
	for _, n := range names {
		hosts += "10.0.9.9 " + n + "\n"
	}
	s.must(os.WriteFile(filepath.Join(s.dir, "hosts"), []byte(hosts), 0o644))
	mux := http.NewServeMux()
	mux.Handle("/v2/", registrytest.New(true))
	mux.HandleFunc("/tracker/data/json", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"systemd":{"CVE-2099-0001":{"releases":{"bookworm":{"status":"open","repositories":{"bookworm":"252.38-1"},"urgency":"low"}}}}}`)
	})
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	for address, h := range map[string]http.Handler{"10.0.9.9:443": mux, "10.0.9.1:443": redfish.New(&switched{}, "turnout", "s3cret", redfish.Manners{})} {
		host, _, _ := net.SplitHostPort(address)
		cert, err := ca.ServerCertificate(append([]string{host}, names...), time.Now())
		s.must(err)
		if host == "10.0.9.1" {
			s.pin = fmt.Sprintf("%x", sha256.Sum256(cert.Certificate[0]))
		}
		l, err := s.rack.Listen(address)
		s.must(err)
		srv := &http.Server{Handler: h, TLSConfig: &tls.Config{Certificates: []tls.Certificate{*cert}}}
		go srv.ServeTLS(l, "", "") //nolint:errcheck // ends with the test
		s.t.Cleanup(func() { srv.Close() })
	}
}

// programs puts our programs into the site's path. imgbuild goes outside for
// packages.
func (s *site) programs(outside *os.File) {
	s.must(os.Mkdir(filepath.Join(s.dir, "bin"), 0o755))
	for _, p := range []string{"pxeserver", "nodeagent"} {
		s.must(os.Symlink(filepath.Join(s.bin, p), filepath.Join(s.dir, "bin", p)))
	}
	s.must(os.WriteFile(filepath.Join(s.dir, "bin/imgbuild"), fmt.Appendf(nil,
		"#!/bin/sh\ncase $1 in lock|build|vendor) exec nsenter --net=/proc/%d/fd/%d %[3]s/imgbuild \"$@\";; esac\nexec %[3]s/imgbuild \"$@\"\n", os.Getpid(), outside.Fd(), s.bin), 0o755))
}

// switched is a machine that is only a switch.
type switched struct{ on atomic.Bool }

func (s *switched) Running() bool    { return s.on.Load() }
func (s *switched) PowerOn() error   { s.on.Store(true); return nil }
func (s *switched) PowerOff() error  { s.on.Store(false); return nil }
func (s *switched) Reset() error     { return nil }
func (s *switched) Shutdown() error  { s.on.Store(false); return nil }
func (s *switched) NetworkOnce(bool) {}
