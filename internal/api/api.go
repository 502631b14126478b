// Package api is the wire between nodes, operators and pxeserver: paths and
// JSON bodies, and a client for each side. It holds no server code.
//
// Node side. A node first proves which TPM it has, then gets a short-lived
// client certificate, then speaks mutual TLS:
//
//	POST enrol     EK, AK, CSR            -> pending | challenge | refused
//	POST activate  secret from the TPM    -> client certificate
//	POST nonce     (mTLS)                 -> nonce, PCR selection
//	POST attest    (mTLS) quote and log   -> verdict
//	POST heartbeat (mTLS) report          -> desired state
//	POST events    (mTLS) progress lines
//	GET  images/<digest>/…  (mTLS)        -> OCI manifest, signature, blobs
//
// The attestation key is a primary key in the endorsement hierarchy, made
// anew from the TPM's seed at every boot, so nothing secret rests on a disk.
//
// Operator side: the paths under /v1/ that are not under /v1/node, with a
// bearer token.
package api

import "github.com/turnout-project/turnout/internal/fleet"

// Paths of the node API.
const (
	PathEnrol     = "/v1/node/enrol"
	PathActivate  = "/v1/node/activate"
	PathNonce     = "/v1/node/nonce"
	PathAttest    = "/v1/node/attest"
	PathHeartbeat = "/v1/node/heartbeat"
	PathEvents    = "/v1/node/events"
	PathImages    = "/v1/images/" // + digest + "/manifest" | "/signature" | "/blobs/" + blob digest
)

// ServerName is the DNS name in every server certificate, whatever address
// the node reached it under.
const ServerName = "pxeserver.turnout.internal"

// DHCPOptionServer is the DHCP option (RFC 3942 site-specific range) that
// carries the https URL of the node API.
const DHCPOptionServer = 224

// VendorClass is the DHCP vendor class (option 60) of nodeagent, so that the
// server never takes it for firmware.
const VendorClass = "turnout-nodeagent"

// EnrolRequest opens a session. Byte fields are base64 in JSON.
type EnrolRequest struct {
	EKPublic      []byte           `json:"ekPublic"`                // TPM2B_PUBLIC as marshalled by the TPM
	EKCertificate []byte           `json:"ekCertificate,omitempty"` // DER, nil when the TPM has none
	EKChain       []byte           `json:"ekChain,omitempty"`       // certificates between it and its maker's root that the TPM keeps, DER one after the other
	AKPublic      []byte           `json:"akPublic"`                // TPM2B_PUBLIC
	CSR           []byte           `json:"csr"`                     // DER PKCS #10, ECDSA P-256
	MACs          []fleet.MAC      `json:"macs"`
	Stage         fleet.Stage      `json:"stage"`
	BootID        string           `json:"bootID"`
	Inventory     *fleet.Inventory `json:"inventory,omitempty"`
}

// Answers to an EnrolRequest.
const (
	EnrolPending   = "pending"   // wait for an operator, ask again after RetryAfter
	EnrolChallenge = "challenge" // prove that EK and AK live in one TPM
	EnrolRefused   = "refused"   // another TPM is enrolled for this node, EK not trusted, …
)

// EnrolResponse answers an EnrolRequest.
type EnrolResponse struct {
	Node            string `json:"node,omitempty"`
	Status          string `json:"status"`
	Reason          string `json:"reason,omitempty"`
	RetryAfter      int    `json:"retryAfter,omitempty"` // seconds
	Session         string `json:"session,omitempty"`
	CredentialBlob  []byte `json:"credentialBlob,omitempty"`  // TPM2B_ID_OBJECT contents for TPM2_ActivateCredential
	EncryptedSecret []byte `json:"encryptedSecret,omitempty"` // TPM2B_ENCRYPTED_SECRET contents
}

// ActivateRequest returns the secret that only the right TPM can open.
type ActivateRequest struct {
	Session string `json:"session"`
	Secret  []byte `json:"secret"`
}

// ActivateResponse carries the client certificate for the CSR of the session.
type ActivateResponse struct {
	Node        string `json:"node"`
	Certificate string `json:"certificate"`          // PEM, leaf only
	RenewAfter  int    `json:"renewAfter,omitempty"` // seconds after which to enrol anew, well before it runs out; 0 means when it has
}

// NonceResponse is what the next quote must answer.
type NonceResponse struct {
	Nonce []byte `json:"nonce"`           // 32 bytes, used once
	Bank  string `json:"bank"`            // "sha256"
	PCRs  []int  `json:"pcrs"`            // exactly these must be selected
	Every int    `json:"every,omitempty"` // seconds after which to attest again, even if accepted; 0 means never
}

// AttestRequest is one piece of evidence.
type AttestRequest struct {
	Nonce     []byte         `json:"nonce"`
	BootID    string         `json:"bootID"`
	Image     string         `json:"image"`     // digest or its first 12 hex digits, as the node believes
	Stage     fleet.Stage    `json:"stage"`     // installer or system
	Path      string         `json:"path"`      // "disk", "network", "installer"
	Quote     []byte         `json:"quote"`     // TPMS_ATTEST as signed
	Signature []byte         `json:"signature"` // TPMT_SIGNATURE
	PCRs      map[int][]byte `json:"pcrs"`      // values of the selection, in the quote's bank
	EventLog  []byte         `json:"eventLog"`  // as the kernel shows it, TCG PC Client binary form
	// LogHash stands for a log that was accepted before in this boot (see
	// LogHash); EventLog is empty then. An answer "no-log" asks for the log.
	LogHash string       `json:"logHash,omitempty"`
	Model   *fleet.Model `json:"model,omitempty"` // of the machine, as its firmware calls it
}

// HeartbeatResponse tells a node what is wanted of it.
type HeartbeatResponse struct {
	Desired  fleet.Desired `json:"desired"`
	Interval int           `json:"interval"` // seconds to the next heartbeat
	Ask      *fleet.Ask    `json:"ask,omitempty"`
	Servers  []string      `json:"servers,omitempty"` // https URLs of all servers of the fleet; empty where there is one
	Cache    string        `json:"cache,omitempty"`   // URL of an HTTP cache near the node, under which blobs of images have the same paths; "" for none
}

// NodeEvent is one line of a node's own story.
type NodeEvent struct {
	Kind    string `json:"kind"` // "install.progress", "slot.armed", "health.failed", …
	Message string `json:"message"`
}

// EventsRequest carries node events in order.
type EventsRequest struct {
	Events []NodeEvent `json:"events"`
}

// Problem is the body of every answer that is not 2xx (RFC 9457,
// application/problem+json).
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Hint   string `json:"hint,omitempty"` // what to do next
}

// Error makes a Problem an error.
func (p *Problem) Error() string {
	s := p.Title
	if p.Detail != "" {
		s += ": " + p.Detail
	}
	if p.Hint != "" {
		s += " (" + p.Hint + ")"
	}
	return s
}
