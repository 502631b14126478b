package api

import (
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
)

// Paths of views: what a page or a program that watches the fleet asks for.
//
//	GET watch?rows=1&after=        text/event-stream, see Hello, Rows and fleet.Event
//	GET nodes/{node}/timeline      []Episode, newest first
//	GET images/{digest}            ImageDetails
//	GET rollouts?summary=1         []RolloutSummary
//	GET openapi.json               this API in OpenAPI 3.1, without a token
const (
	PathWatch   = "/v1/watch"
	PathOpenAPI = "/v1/openapi.json"
)

// Names of server-sent events of PathWatch.
const (
	WatchHello  = "hello"  // Hello, once
	WatchRows   = "rows"   // Rows: the whole fleet in parts, then what changed
	WatchEvents = "events" // []fleet.Event by rising ID; the SSE id is that of the last
)

// Hello opens a watch.
type Hello struct {
	Version   string    `json:"version"`
	Now       time.Time `json:"now"`       // server clock
	Heartbeat int       `json:"heartbeat"` // seconds
}

// Rows is news of the fleet. With Reset the reader forgets what it had; a
// fleet of many nodes then comes in several Rows, the last with Whole.
type Rows struct {
	Reset bool       `json:"reset,omitempty"`
	Whole bool       `json:"whole,omitempty"`
	Rows  []FleetRow `json:"rows,omitempty"`
	Gone  []string   `json:"gone,omitempty"` // names of removed nodes
}

// What FleetRow says of health, attestation and power.
const (
	HealthGood    = "healthy"
	HealthFailing = "failing"
	HealthUnknown = "unknown"
	HealthNone    = "" // no system has reported

	AttestAccepted = "accepted"
	AttestRefused  = "refused"
	AttestOld      = "last boot" // accepted, but booted again since
	AttestNone     = ""

	PowerOn  = "on"
	PowerOff = "off"
)

// FleetRow is a node in short. It changes when something happens to the
// node, not with each heartbeat.
type FleetRow struct {
	Name      string          `json:"name"`
	Pool      string          `json:"pool"`
	Rack      string          `json:"rack"` // the name up to its last hyphen, or ""
	State     fleet.NodeState `json:"state"`
	Reason    string          `json:"reason,omitempty"`
	Stage     fleet.Stage     `json:"stage,omitempty"`
	Slot      fleet.Slot      `json:"slot,omitempty"` // booted
	SlotState fleet.SlotState `json:"slotState,omitempty"`
	Image     string          `json:"image,omitempty"` // digest of the booted one
	ImageName string          `json:"imageName,omitempty"`
	Other     string          `json:"other,omitempty"`   // digest in the other slot
	Wanted    string          `json:"wanted,omitempty"`  // digest that it is on its way to, "" when it is there
	Rollout   string          `json:"rollout,omitempty"` // that wants it
	Health    string          `json:"health,omitempty"`
	Check     string          `json:"check,omitempty"` // first check that does not pass, with detail
	Attest    string          `json:"attest,omitempty"`
	Activity  string          `json:"activity,omitempty"`
	Kernel    string          `json:"kernel,omitempty"`
	Driver    string          `json:"driver,omitempty"`
	Silent    *time.Time      `json:"silent,omitempty"` // last seen, if that is too long ago
	Power     string          `json:"power,omitempty"`  // PowerOn or PowerOff; "" if it is not known
}

// Episode is one way of a node from a request to an outcome: a boot, an
// installation with its trial, a flip.
type Episode struct {
	Title   string    `json:"title"`
	Started time.Time `json:"started"`
	Ended   time.Time `json:"ended"`
	Outcome string    `json:"outcome"` // "confirmed", "running" (a confirmed slot), "fell back", "failed", "" while under way or unknown
	Steps   []Step    `json:"steps"`   // in order of time
}

// Step is one phase of an Episode.
type Step struct {
	Phase   string        `json:"phase"` // "net", "enrol", "install", "restart", "boot", "attest", "health", "outcome", or "note"
	State   string        `json:"state"` // "done", "active", "failed"
	Started time.Time     `json:"started"`
	Ended   time.Time     `json:"ended"`
	Percent int           `json:"percent,omitempty"` // of an installation
	Detail  string        `json:"detail"`            // its last line
	Events  []fleet.Event `json:"events"`
}

// ImageDetails is a published image with its manifest and its files.
type ImageDetails struct {
	fleet.Image
	Manifest *manifest.Manifest `json:"manifest"`
	Files    []ImageFile        `json:"files"`
}

// ImageFile is one blob of an image, to be had under images/{digest}/blobs/.
type ImageFile struct {
	Digest    string `json:"digest"`
	MediaType string `json:"mediaType"`
	SizeBytes int64  `json:"sizeBytes"`
	Title     string `json:"title,omitempty"` // file name
}

// RolloutSummary is a rollout without its nodes.
type RolloutSummary struct {
	fleet.Rollout
	Counts []map[fleet.MoveState]int `json:"counts"` // by stage
}
