package server

import (
	"context"
	"crypto/ed25519"
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/console"
	"github.com/turnout-project/turnout/internal/drift"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/metrics"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/recovery"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/tpm/judge"
)

// Options is what a Server is made of. All fields are needed unless they say
// otherwise.
type Options struct {
	Store     store.Store
	Images    *oci.Layout
	CA        *CA
	TPM       TPM
	Tokens    []Token             // operators; none: nobody can operate
	ImageKeys []ed25519.PublicKey // who may sign images; none: nothing can be published
	Discovery string              // pool in which unknown machines wait; "": they are refused
	Heartbeat time.Duration       // how often nodes report
	Caches    map[string]string   // URLs of HTTP caches by rack, "*" for all others; none: nodes ask the server
	Servers   []string            // URLs of all servers of the fleet, as nodes are told; none where there is one
	NodeCert  time.Duration       // life of a node's certificate

	AttestEvery time.Duration // how often nodes attest again; 0: once per boot
	AttestAlarm time.Duration // age of a node's verification that is told; 0: none
	Boot        Boot          // the boot services; nil: there are none
	BMC         *bmc.Keys     // seals the passwords of BMCs; nil: there can be none

	Recovery  *recovery.Config   // what is done by itself about nodes in trouble; nil: nothing
	Hooks     []alert.Hook       // webhooks; none: nobody is told
	ReportKey ed25519.PrivateKey // signs reports of nodes; nil: there are none

	ConsoleLogs string // files of nodes' serial consoles, with {node} in the name; "": none

	Limits Limits   // of requests; the zero value limits nothing
	Drains []string // names of the hooks that rollouts may drain nodes with

	Baseline string // BaselineOff ("" too), BaselineWarn, BaselineEnforce

	Version string           // for people
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: quiet
}

// TPM is what the server knows about TPMs: see Trust for the real one.
type TPM interface {
	// CheckEK checks an endorsement key and, if TPM makers are to vouch for
	// it, its certificate (DER). It returns the TPM's identity (see
	// fleet.Node.EKHash) and, for people, what the trust in it rests on.
	CheckEK(ekPublic, cert, chain []byte) (hash, trust string, err error)
	// AKName checks that a public area is that of an attestation key that
	// cannot leave its TPM nor sign foreign data, and returns its name in hex.
	AKName(akPublic []byte) (string, error)
	// MakeCredential makes a secret that only the TPM with both keys opens.
	MakeCredential(ekPublic, akPublic []byte) (blob, encrypted, secret []byte, err error)
	// Wanted says which PCRs of which bank a quote must select.
	Wanted() (bank string, pcrs []int)
	// Judge judges evidence. It does not fail: what cannot be judged is not
	// accepted. The clock is that of the quote, nil if the quote is not the
	// enrolled TPM's.
	Judge(e Evidence) (fleet.Verdict, *store.Clock)
}

// Evidence is what a node attests with, and what it is judged by.
type Evidence struct {
	Request  *api.AttestRequest
	AKPublic []byte          // of the enrolment
	Before   *store.Clock    // of the newest genuine quote before, nil for none
	Last     *fleet.Verdict  // the newest verdict before, nil for none
	Firmware *judge.Firmware // what the firmware is held against, nil for nothing
	Image    *oci.Image      // the image the node says it runs, signature checked when it was published
	Fleet    []*oci.Image    // all published images: either slot's loader may have started it
}

// Server answers both APIs. Make one with New.
type Server struct {
	Options
	current  atomic.Pointer[Options] // see live
	log      *slog.Logger
	news     *news
	wake     chan struct{}
	board    *board
	tracers  tracers
	handouts handouts
	console  *console.Console
	buckets  buckets

	mu      sync.Mutex
	images  map[string]*oci.Image // loaded, by digest: they never change
	broken  map[string]unreadable // images that could not be loaded, by digest
	moods   map[string]*mood      // by node, see moods.go
	booted  map[string]bootTold   // by MAC and kind, see watch.go
	tallies map[string]tally      // of rollouts that are over, by ID
	boots   chan bootLine

	bmcTurns turns
	powers   powers
	drivers  map[string]drift.Image // of images, by digest

	metrics *metrics.Metrics
}

// New makes a server. It starts nothing.
func New(o Options) *Server {
	s := &Server{
		Options: o, log: o.Log, news: newNews(), wake: make(chan struct{}, 1), boots: make(chan bootLine, 1024),
		images: map[string]*oci.Image{}, broken: map[string]unreadable{}, moods: map[string]*mood{}, booted: map[string]bootTold{}, tallies: map[string]tally{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.current.Store(&o)
	s.metrics = metrics.New(s.Store, s.now, s.Version)
	s.board = newBoard(s)
	s.console = console.New(console.Options{Store: s.Store, Know: s.who, Now: s.now, Log: s.log})
	return s
}

func (s *Server) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// Wake is sent to when something changed that a rollout may wait for.
func (s *Server) Wake() <-chan struct{} { return s.wake }

func (s *Server) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// update runs fn in the store and tells those who wait for events.
func (s *Server) update(ctx context.Context, fn func(tx store.Tx) error) error {
	err := s.Store.Update(ctx, fn)
	if err == nil {
		s.news.tell()
		s.poke()
	}
	return err
}

// TLS returns the TLS settings of the API. Client certificates are checked
// with each request rather than in the handshake, so that one that has run
// out gets an answer that says so. Browsers get HTTP/2, since each open page
// holds a connection of its own otherwise and a browser has six; nodes and
// the command line, which ask for api.ServerName, have no use for it.
func (s *Server) TLS(cert *tls.Certificate) *tls.Config {
	c := &tls.Config{Certificates: []tls.Certificate{*cert}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS13}
	web := c.Clone()
	web.NextProtos = []string{"h2", "http/1.1"}
	c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		if h.ServerName == api.ServerName {
			return nil, nil // c itself
		}
		return web, nil
	}
	return c
}

// mux remembers what it was told, for the API's description.
type mux struct {
	*http.ServeMux
	patterns []string
}

func (m *mux) HandleFunc(pattern string, h http.HandlerFunc) {
	m.patterns = append(m.patterns, pattern)
	m.ServeMux.HandleFunc(pattern, h)
}

// Handler returns the handler of both APIs and of the web console.
func (s *Server) Handler() http.Handler { return s.mux() }

func (s *Server) mux() *mux {
	m := &mux{ServeMux: http.NewServeMux()}
	m.HandleFunc("POST "+api.PathEnrol, s.fromStranger(s.enrol))
	m.HandleFunc("POST "+api.PathActivate, s.fromStranger(s.activate))
	m.HandleFunc("POST "+api.PathNonce, s.asNode(s.nonce))
	m.HandleFunc("POST "+api.PathAttest, s.asNode(s.attest))
	m.HandleFunc("POST "+api.PathHeartbeat, s.timed(s.asNode(s.heartbeat)))
	m.HandleFunc("POST "+api.PathEvents, s.asNode(s.nodeEvents))
	m.HandleFunc("GET "+api.PathImages+"{digest}/manifest", s.asEither(s.imageManifest))
	m.HandleFunc("GET "+api.PathImages+"{digest}/signature", s.asEither(s.imageSignature))
	m.HandleFunc("GET "+api.PathImages+"{digest}/blobs/{blob}", s.asEither(s.imageBlob))

	view := func(p string, h func(http.ResponseWriter, *http.Request, string) (any, error)) {
		m.HandleFunc("GET "+p, s.asOperator(RoleViewer, h))
	}
	act := func(p string, h func(http.ResponseWriter, *http.Request, string) (any, error)) {
		m.HandleFunc(p, s.asOperator(RoleOperator, h))
	}
	view(api.PathVersion, s.version)
	view(api.PathNodes, s.listNodes)
	view(api.PathNodes+"/{node}", s.showNode)
	act("POST "+api.PathNodes, s.addNode)
	act("DELETE "+api.PathNodes+"/{node}", s.removeNode)
	act("POST "+api.PathNodes+"/{node}/{act}", s.actOnNode)
	m.HandleFunc("POST "+api.PathNodes+"/{node}/cleartpm", s.asOperator(RoleAdmin, s.clearTPM))
	act("POST "+api.PathFlip, s.flip)
	view(api.PathPools, s.listPools)
	act("PUT "+api.PathPools+"/{pool}", s.setPool)
	view(api.PathBaselines, s.listBaselines)
	act("POST "+api.PathBaselines, s.announceBaseline)
	act("POST "+api.PathBaselines+"/{id}/approve", s.approveBaseline)
	act("DELETE "+api.PathBaselines+"/{id}", s.forgetBaseline)
	view(api.PathImageList, s.listImages)
	act("POST "+api.PathImageList, s.publish)
	act("POST "+api.PathImageList+"/{digest}/{act}", s.actOnImage)
	act("POST "+api.PathCollect, s.collect)
	view(api.PathMetrics, s.scrape)
	view(api.PathBlobs+"{digest}", s.hasBlob) // HEAD comes with GET
	act("PUT "+api.PathBlobs+"{digest}", s.putBlob)
	view(api.PathRollouts, s.listRollouts)
	view(api.PathRollouts+"/{id}", s.showRollout)
	act("POST "+api.PathRollouts, s.startRollout)
	act("POST "+api.PathRollouts+"/{id}/{act}", s.actOnRollout)
	view(api.PathEventList, s.listEvents)
	view(api.PathWatch, s.stream)
	view(api.PathNodes+"/{node}/timeline", s.timeline)
	view(api.PathNodes+"/{node}/console", s.consoleLog)
	view(api.PathImageList+"/{digest}", s.showImage)
	s.recoveryRoutes(m)
	s.bootRoutes(m)
	m.HandleFunc("GET "+api.PathOpenAPI, s.answer(s.openAPI))

	m.Handle(console.Path, s.console)
	m.Handle("GET /{$}", http.RedirectHandler(console.Path, http.StatusFound))
	m.ServeMux.HandleFunc("/", s.answer(func(http.ResponseWriter, *http.Request) (any, error) {
		return nil, problem(http.StatusNotFound, "", "no such path")
	}))
	return m
}

func (s *Server) version(http.ResponseWriter, *http.Request, string) (any, error) {
	return api.Version{Version: s.Version, Heartbeat: int(s.Heartbeat.Seconds())}, nil
}
