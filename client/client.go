// Package client is the operator's API of pxeserver for other Go programs:
// the client that the commands use, with the types that it takes and
// returns. Everything a command can do, a program can.
//
// It is the one package outside internal, and a thin one: its names are
// those of internal/api and internal/fleet, which hold the documentation.
// Before version 1.0 they may change with a minor version; the wire format
// is versioned apart from them (/v1).
package client

import (
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Client asks a server as an operator. Safe for concurrent use.
type Client = api.Client

// New makes a client for the server at an https URL ("https://10.77.0.1:8443"),
// trusted by the certificate of its CA (PEM), with an operator's token.
func New(server string, caPEM []byte, token string) (*Client, error) {
	return api.NewClient(server, caPEM, token)
}

// NewWithCertificate is New with a client certificate and its key, in one PEM
// text, in place of a token.
func NewWithCertificate(server string, caPEM, certAndKey []byte) (*Client, error) {
	return api.NewCertClient(server, caPEM, certAndKey)
}

// What errors wrap: nobody answered, and trying again may help; or who
// answered is not the server that the caller trusts, and it does not.
var (
	ErrUnreachable = api.ErrUnreachable
	ErrUntrusted   = api.ErrUntrusted
)

// StatusOf returns the HTTP status of a refusal in err's chain, or 0.
func StatusOf(err error) int { return api.StatusOf(err) }

// Requests and answers of the API.
type (
	Problem         = api.Problem
	Version         = api.Version
	NodeRequest     = api.NodeRequest
	FlipRequest     = api.FlipRequest
	Flip            = api.Flip
	PublishRequest  = api.PublishRequest
	RolloutRequest  = api.RolloutRequest
	RolloutSummary  = api.RolloutSummary
	ReasonRequest   = api.ReasonRequest
	AnnounceRequest = api.AnnounceRequest
	EventQuery      = api.EventQuery
	News            = api.News
	Rows            = api.Rows
	FleetRow        = api.FleetRow
	ReportQuery     = api.ReportQuery
	ReportKey       = api.ReportKey
	CollectRequest  = api.CollectRequest
	Collected       = api.Collected
	Recovery        = api.Recovery
	RecoveryNode    = api.RecoveryNode
	PauseRequest    = api.PauseRequest
	BMC             = api.BMC
	BMCRequest      = api.BMCRequest
	Power           = api.Power
	PowerRequest    = api.PowerRequest
	BootTrace       = api.BootTrace
	BootQuery       = api.BootQuery
	BootExplanation = api.BootExplanation
	ConsoleLog      = api.ConsoleLog
	Webhook         = api.Webhook
)

// What the server knows of a fleet.
type (
	Node         = fleet.Node
	NodeState    = fleet.NodeState
	Desired      = fleet.Desired
	Report       = fleet.Report
	SlotReport   = fleet.SlotReport
	Slot         = fleet.Slot
	SlotState    = fleet.SlotState
	CheckResult  = fleet.CheckResult
	Inventory    = fleet.Inventory
	Verdict      = fleet.Verdict
	Ban          = fleet.Ban
	Pool         = fleet.Pool
	Image        = fleet.Image
	Rollout      = fleet.Rollout
	RolloutState = fleet.RolloutState
	RolloutStage = fleet.RolloutStage
	Policy       = fleet.Policy
	Amount       = fleet.Amount
	Window       = fleet.Window
	Move         = fleet.Move
	MoveState    = fleet.MoveState
	Event        = fleet.Event
	Baseline     = fleet.Baseline
	Drift        = fleet.Drift
	UsageRow     = fleet.UsageRow
	Machine      = fleet.Machine
	Firmware     = fleet.Firmware
	Sensor       = fleet.Sensor
	BMCTask      = fleet.BMCTask
	BootTarget   = fleet.BootTarget
	MAC          = fleet.MAC
)

// Texts of stages, amounts and windows of a rollout, as the commands take
// them: "rack:10%", "25%", "mon-fri 22:00-06:00 Europe/Berlin".
var (
	ParseStage  = fleet.ParseStage
	ParseAmount = fleet.ParseAmount
	ParseWindow = fleet.ParseWindow
)
