package server

import (
	"net/http"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/nodereport"
)

// recoveryRoutes registers what has to do with BMCs and recovery.
func (s *Server) recoveryRoutes(m *mux) {
	node := api.PathNodes + "/{node}/bmc"
	as := func(role Role, pattern string, h operatorHandler) { m.HandleFunc(pattern, s.asOperator(role, h)) }
	as(RoleViewer, "GET "+api.PathBMCs, s.listBMCs)
	as(RoleViewer, "GET "+node, s.showBMC)
	as(RoleAdmin, "PUT "+node, s.setBMC)
	as(RoleAdmin, "DELETE "+node, s.removeBMC)
	as(RoleViewer, "GET "+node+"/power", askBMC(s, s.bmcPower))
	as(RoleOperator, "POST "+node+"/power", s.setPower)
	as(RoleOperator, "POST "+node+"/boot", s.bootOnce)
	as(RoleViewer, "GET "+node+"/machine", askBMC(s, bmcMachine))
	as(RoleViewer, "GET "+node+"/firmware", s.showFirmware)
	as(RoleViewer, "GET "+node+"/sensors", askBMC(s, bmcSensors))
	as(RoleAdmin, "POST "+node+"/update", s.updateFirmware)
	as(RoleViewer, "GET "+node+"/task", askBMC(s, bmcTask))
	as(RoleViewer, "GET "+api.PathAlerts, s.listAlerts)
	as(RoleOperator, "POST "+api.PathAlerts+"/{name}/test", s.testAlert)
	as(RoleViewer, "GET "+api.PathReport, s.report)
	as(RoleViewer, "GET "+api.PathReport+"/key", s.reportKey)
	as(RoleViewer, "GET "+api.PathUsage, s.usageOf)
	as(RoleViewer, "GET "+api.PathRecovery, s.showRecovery)
	as(RoleViewer, "GET "+api.PathDrift, s.showDrift)
	as(RoleOperator, "POST "+api.PathRecovery+"/pause", s.pauseRecovery)
	as(RoleOperator, "POST "+api.PathRecovery+"/resume", s.resumeRecovery)
}

var recoveryOperations = []operation{
	{"GET " + api.PathBMCs, "How the BMCs of nodes are reached", "viewer", nil, nil, []api.BMC{}, ""},
	{"GET " + api.PathNodes + "/{node}/bmc", "How a node's BMC is reached", "viewer", nil, nil, api.BMC{}, ""},
	{"PUT " + api.PathNodes + "/{node}/bmc", "Say how a node's BMC is reached", "admin", nil, api.BMCRequest{}, api.BMC{}, ""},
	{"DELETE " + api.PathNodes + "/{node}/bmc", "Forget a node's BMC and its password", "admin", nil, nil, nil, ""},
	{"GET " + api.PathNodes + "/{node}/bmc/power", "State of a node's power", "viewer", nil, nil, api.Power{}, ""},
	{"POST " + api.PathNodes + "/{node}/bmc/power", "Switch a node on or off, or cycle its power", "operator", nil, api.PowerRequest{}, api.Power{}, ""},
	{"POST " + api.PathNodes + "/{node}/bmc/boot", "Set what a node boots next time, once", "operator", nil, api.BootRequest{}, nil, ""},
	{"GET " + api.PathNodes + "/{node}/bmc/machine", "What the machine is, in its BMC's words", "viewer", nil, nil, fleet.Machine{}, ""},
	{"GET " + api.PathNodes + "/{node}/bmc/firmware", "Versions of a node's firmware", "viewer", nil, nil, []fleet.Firmware{}, ""},
	{"GET " + api.PathNodes + "/{node}/bmc/sensors", "Sensors of a node", "viewer", nil, nil, []fleet.Sensor{}, ""},
	{"POST " + api.PathNodes + "/{node}/bmc/update", "Have a node's BMC install a firmware file (the body)", "admin", []param{{"name", "string", "name of the file"}, {"target", "string", "Redfish path of firmware to update; may be repeated"}}, nil, fleet.BMCTask{}, ""},
	{"GET " + api.PathNodes + "/{node}/bmc/task", "How a task of a BMC goes", "viewer", []param{{"path", "string", "as the update named it"}}, nil, fleet.BMCTask{}, ""},
	{"GET " + api.PathDrift, "Where the fleet is not as it should be", "viewer", []param{{"pool", "string", "of the nodes of one pool"}}, nil, fleet.Drift{}, ""},
	{"GET " + api.PathAlerts, "Webhooks, and how far each is", "viewer", nil, nil, []api.Webhook{}, ""},
	{"POST " + api.PathAlerts + "/{name}/test", "Send a webhook a test", "operator", nil, nil, api.Webhook{}, ""},
	{"GET " + api.PathReport, "Facts of nodes, signed", "viewer", []param{{"node", "string", "of one node"}, {"rack", "string", "of the nodes of a rack or domain"}, {"pool", "string", "of the nodes of a pool"}, {"require", "string", "a fact that must hold; may be repeated"}}, nil, nodereport.Signed{}, ""},
	{"GET " + api.PathReport + "/key", "The key that verifies reports", "viewer", nil, nil, api.ReportKey{}, ""},
	{"GET " + api.PathUsage, "For how long GPUs and their instances were occupied", "viewer", []param{{"from", "string", "time, RFC 3339"}, {"to", "string", "time, not included"}, {"by", "string", "hour, day, month, all"}, {"pool", "string", "of one pool"}}, nil, []fleet.UsageRow{}, ""},
	{"GET " + api.PathRecovery, "Nodes in trouble, and what was done about them", "viewer", nil, nil, api.Recovery{}, ""},
	{"POST " + api.PathRecovery + "/pause", "Do nothing by itself for a time", "operator", nil, api.PauseRequest{}, api.Recovery{}, ""},
	{"POST " + api.PathRecovery + "/resume", "Take recovery up again", "operator", nil, nil, api.Recovery{}, ""},
}

// operatorHandler answers an operator; actor is who it is, for events.
type operatorHandler = func(w http.ResponseWriter, r *http.Request, actor string) (any, error)
