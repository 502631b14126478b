package api

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// PathBMCs lists BMCs; the other paths are those of their nodes. The server
// speaks to them; clients never do.
//
//	GET    bmcs                       []BMC
//	PUT    nodes/{node}/bmc           BMCRequest -> BMC      admin
//	GET    nodes/{node}/bmc           BMC
//	DELETE nodes/{node}/bmc                                  admin
//	GET    nodes/{node}/bmc/power     Power
//	POST   nodes/{node}/bmc/power     PowerRequest -> Power
//	POST   nodes/{node}/bmc/boot      BootRequest
//	GET    nodes/{node}/bmc/machine   fleet.Machine
//	GET    nodes/{node}/bmc/firmware  []fleet.Firmware
//	GET    nodes/{node}/bmc/sensors   []fleet.Sensor
//	POST   nodes/{node}/bmc/update?name=&target=  bytes -> fleet.BMCTask   admin
//	GET    nodes/{node}/bmc/task?path=            fleet.BMCTask
const PathBMCs = "/v1/bmcs"

// BMC is how a node's management controller is reached. Its password is
// never shown.
type BMC struct {
	Node   string `json:"node"`
	URL    string `json:"url"`
	User   string `json:"user"`
	Pin    string `json:"pin,omitempty"`    // SHA-256 of its certificate
	CA     string `json:"ca,omitempty"`     // PEM
	System string `json:"system,omitempty"` // Redfish ID of the machine
}

// BMCRequest sets a BMC. One of Pin and CA is needed. Without NoCheck the
// server speaks to it first, and refuses one that looks after another machine.
type BMCRequest struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password,omitempty"` // "" keeps the one that is set
	Pin      string `json:"pin,omitempty"`
	CA       string `json:"ca,omitempty"`
	System   string `json:"system,omitempty"`
	NoCheck  bool   `json:"noCheck,omitempty"`
}

// Power is the state of a node's power: "On", "Off" or what else its BMC says.
type Power struct {
	Node  string `json:"node"`
	State string `json:"state"`
}

// PowerRequest does something to it.
type PowerRequest struct {
	Act    fleet.PowerAct `json:"act"`
	Reason string         `json:"reason,omitempty"`
}

// BootRequest sets what a node boots next time, once.
type BootRequest struct {
	Target fleet.BootTarget `json:"target"`
}

func bmcPath(node, rest string) string {
	return PathNodes + "/" + url.PathEscape(node) + "/bmc" + rest
}

// BMCs lists how the management controllers of nodes are reached, by node.
func (c *Client) BMCs(ctx context.Context) ([]BMC, error) { return get[[]BMC](ctx, c, PathBMCs) }

// BMC returns how one is reached.
func (c *Client) BMC(ctx context.Context, node string) (*BMC, error) {
	return get[*BMC](ctx, c, bmcPath(node, ""))
}

// SetBMC says how one is reached.
func (c *Client) SetBMC(ctx context.Context, node string, r BMCRequest) (*BMC, error) {
	return send[*BMC](ctx, c, http.MethodPut, bmcPath(node, ""), r)
}

// RemoveBMC forgets one, with its password.
func (c *Client) RemoveBMC(ctx context.Context, node string) error {
	return c.t.call(ctx, http.MethodDelete, bmcPath(node, ""), c.header, nil, nil)
}

// Power asks for the state of a node's power.
func (c *Client) Power(ctx context.Context, node string) (*Power, error) {
	return get[*Power](ctx, c, bmcPath(node, "/power"))
}

// SetPower does something to a node's power.
func (c *Client) SetPower(ctx context.Context, node string, r PowerRequest) (*Power, error) {
	return send[*Power](ctx, c, http.MethodPost, bmcPath(node, "/power"), r)
}

// BootOnce sets what a node boots next time.
func (c *Client) BootOnce(ctx context.Context, node string, t fleet.BootTarget) error {
	return c.t.call(ctx, http.MethodPost, bmcPath(node, "/boot"), c.header, BootRequest{t}, nil)
}

// Machine asks a node's BMC what the machine is.
func (c *Client) Machine(ctx context.Context, node string) (*fleet.Machine, error) {
	return get[*fleet.Machine](ctx, c, bmcPath(node, "/machine"))
}

// Firmware asks a node's BMC for the versions of its firmware.
func (c *Client) Firmware(ctx context.Context, node string) ([]fleet.Firmware, error) {
	return get[[]fleet.Firmware](ctx, c, bmcPath(node, "/firmware"))
}

// Sensors asks a node's BMC for its sensors.
func (c *Client) Sensors(ctx context.Context, node string) ([]fleet.Sensor, error) {
	return get[[]fleet.Sensor](ctx, c, bmcPath(node, "/sensors"))
}

// UpdateFirmware has a node's BMC install a firmware file.
func (c *Client) UpdateFirmware(ctx context.Context, node, name string, targets []string, file io.Reader) (*fleet.BMCTask, error) {
	q := url.Values{"name": {name}, "target": targets}
	resp, err := c.t.do(ctx, http.MethodPost, bmcPath(node, "/update?")+q.Encode(), file, c.header)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return decode[fleet.BMCTask](resp.Body)
}

// BMCTask asks how a task of a node's BMC goes.
func (c *Client) BMCTask(ctx context.Context, node, path string) (*fleet.BMCTask, error) {
	return get[*fleet.BMCTask](ctx, c, bmcPath(node, "/task?path="+url.QueryEscape(strings.TrimSpace(path))))
}
