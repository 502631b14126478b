package node

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/credential"
	"github.com/turnout-project/turnout/internal/tpm/quote"
)

// fakeServer speaks the node API as the real one does, and says what the test
// wants it to say. It checks quotes, but judges no event log.
type fakeServer struct {
	t      *testing.T
	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	caPEM  []byte
	http   *httptest.Server
	images map[string][]byte // path below /v1/images/ -> content

	mu      sync.Mutex
	wantLog bool // a hash for a log will not do
	away    bool // answers nothing
	expired bool // takes no certificate until the next enrolment
	desired fleet.Desired
	ask     *fleet.Ask
	verdict fleet.Verdict
	secret  []byte
	csr     []byte
	ak      []byte
	nonce   []byte
	every   int // seconds between attestations
	renew   int // seconds before a certificate is replaced
	enrols  int
	attests []api.AttestRequest
	reports []*fleet.Report
	events  []api.NodeEvent
}

func newFakeServer(t *testing.T) *fakeServer {
	t.Helper()
	s := &fakeServer{t: t, verdict: fleet.Verdict{Accepted: true, Summary: "as built"}, images: map[string][]byte{}}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s.caKey = key
	s.ca = s.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "CA"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, &key.PublicKey)
	s.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.ca.Raw})
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := s.sign(&x509.Certificate{DNSNames: []string{api.ServerName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, &leafKey.PublicKey)
	pool := x509.NewCertPool()
	pool.AddCert(s.ca)
	s.http = httptest.NewUnstartedServer(http.HandlerFunc(s.serve))
	s.http.TLS = &tls.Config{
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: leafKey}},
		ClientAuth:   tls.VerifyClientCertIfGiven, ClientCAs: pool,
	}
	s.http.StartTLS()
	t.Cleanup(s.http.Close)
	return s
}

func (s *fakeServer) sign(c *x509.Certificate, pub any) *x509.Certificate {
	s.t.Helper()
	c.SerialNumber = big.NewInt(time.Now().UnixNano())
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent := s.ca
	if parent == nil {
		parent = c
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, pub, s.caKey)
	if err != nil {
		s.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *fakeServer) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		panic(http.ErrAbortHandler)
	}
	if p, ok := strings.CutPrefix(r.URL.Path, api.PathImages); ok {
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(s.images[p]))
		return
	}
	isOpen := r.URL.Path == api.PathEnrol || r.URL.Path == api.PathActivate
	if !isOpen && (s.expired || len(r.TLS.PeerCertificates) == 0) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusUnauthorized)
		_ = json.NewEncoder(w).Encode(api.Problem{Title: "enrol again", Status: http.StatusUnauthorized})
		return
	}
	var out any
	switch r.URL.Path {
	case api.PathEnrol:
		out = s.enrol(r)
	case api.PathActivate:
		out = s.activate(r)
	case api.PathNonce:
		s.nonce = []byte(rand.Text())
		out = api.NonceResponse{Nonce: s.nonce, Bank: "sha256", PCRs: []int{4, 11}, Every: s.every}
	case api.PathAttest:
		out = s.attest(r)
	case api.PathHeartbeat:
		rep := decode[fleet.Report](s.t, r)
		s.reports = append(s.reports, &rep)
		out = api.HeartbeatResponse{Desired: s.desired, Interval: 1, Ask: s.ask}
	case api.PathEvents:
		s.events = append(s.events, decode[api.EventsRequest](s.t, r).Events...)
	}
	_ = json.NewEncoder(w).Encode(out)
}

func decode[T any](t *testing.T, r *http.Request) T {
	var v T
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		t.Errorf("%s: %v", r.URL.Path, err)
	}
	return v
}

func (s *fakeServer) enrol(r *http.Request) any {
	req := decode[api.EnrolRequest](s.t, r)
	blob, enc, secret, err := credential.MakeCredential(req.EKPublic, req.AKPublic)
	if err != nil {
		s.t.Errorf("MakeCredential: %v", err)
	}
	s.secret, s.csr, s.ak = secret, req.CSR, req.AKPublic
	s.enrols++
	return api.EnrolResponse{Status: api.EnrolChallenge, Session: "s", CredentialBlob: blob, EncryptedSecret: enc}
}

func (s *fakeServer) activate(r *http.Request) any {
	if req := decode[api.ActivateRequest](s.t, r); !bytes.Equal(req.Secret, s.secret) {
		s.t.Error("the secret came back wrong")
	}
	csr, err := x509.ParseCertificateRequest(s.csr)
	if err != nil {
		s.t.Errorf("CSR: %v", err)
		return nil
	}
	c := s.sign(&x509.Certificate{Subject: pkix.Name{CommonName: "n1"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, csr.PublicKey)
	s.expired = false
	return api.ActivateResponse{Node: "n1", RenewAfter: s.renew, Certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}))}
}

func (s *fakeServer) attest(r *http.Request) any {
	req := decode[api.AttestRequest](s.t, r)
	s.attests = append(s.attests, req)
	_, err := quote.Verify(quote.Expect{AK: s.ak, Nonce: s.nonce, Bank: "sha256", PCRs: []int{4, 11}}, req.Quote, req.Signature, req.PCRs)
	if err != nil {
		s.t.Errorf("quote: %v", err)
	}
	v := s.verdict
	if s.wantLog && len(req.EventLog) == 0 {
		v = fleet.Verdict{Summary: "send the log"}
	}
	v.BootID = req.BootID
	return v
}

// with runs f while nothing else touches the server's state.
func (s *fakeServer) with(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// story returns the events so far, "kind: message" each.
func (s *fakeServer) story() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	for _, e := range s.events {
		b.WriteString(e.Kind + ": " + e.Message + "\n")
	}
	return b.String()
}

// last returns the newest report, nil before the first.
func (s *fakeServer) last() *fleet.Report {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.reports) == 0 {
		return nil
	}
	return s.reports[len(s.reports)-1]
}
