package bmc_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
)

// rackmount has the shape and the values of DMTF's public mockup of a
// rack-mounted server (DSP2043, public-rackmount1), as far as this package
// reads it: a root with a slash at its end, names that are no numbers, no
// HTTP boot, and sensors that do not say their type.
var rackmount = map[string]string{
	"/redfish/v1": `{"@odata.id": "/redfish/v1/", "@odata.type": "#ServiceRoot.v1_15_0.ServiceRoot", "Id": "RootService", "Name": "Root Service", "RedfishVersion": "1.15.0",
		"ProtocolFeaturesSupported": {"ExpandQuery": {"ExpandAll": true, "Levels": true, "MaxLevels": 6, "Links": true, "NoLinks": true}, "OnlyMemberQuery": true},
		"Systems": {"@odata.id": "/redfish/v1/Systems"}, "Chassis": {"@odata.id": "/redfish/v1/Chassis"}, "Managers": {"@odata.id": "/redfish/v1/Managers"},
		"SessionService": {"@odata.id": "/redfish/v1/SessionService"}, "UpdateService": {"@odata.id": "/redfish/v1/UpdateService"},
		"Links": {"Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}}, "Oem": {}}`,
	"/redfish/v1/Systems": `{"@odata.id": "/redfish/v1/Systems", "@odata.type": "#ComputerSystemCollection.ComputerSystemCollection", "Name": "Computer System Collection",
		"Members@odata.count": 1, "Members": [{"@odata.id": "/redfish/v1/Systems/437XR1138R2"}]}`,
	"/redfish/v1/Systems/437XR1138R2": `{"@odata.id": "/redfish/v1/Systems/437XR1138R2", "@odata.type": "#ComputerSystem.v1_22_0.ComputerSystem", "Id": "437XR1138R2", "Name": "WebFrontEnd483",
		"SystemType": "Physical", "Manufacturer": "Contoso", "Model": "3500", "SKU": "8675309", "SerialNumber": "437XR1138R2", "UUID": "38947555-7742-3448-3784-823347823834",
		"Status": {"State": "Enabled", "Health": "OK", "HealthRollup": "OK"}, "PowerState": "On", "BiosVersion": "P79 v1.45 (12/06/2017)", "MemorySummary": {"TotalSystemMemoryGiB": 64},
		"Boot": {"BootSourceOverrideEnabled": "Once", "BootSourceOverrideTarget": "Pxe", "BootSourceOverrideMode": "UEFI",
			"BootSourceOverrideTarget@Redfish.AllowableValues": ["None", "Pxe", "Cd", "Usb", "Hdd", "BiosSetup", "Utilities", "Diags", "SDCard", "UefiTarget"]},
		"Processors": {"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors"}, "EthernetInterfaces": {"@odata.id": "/redfish/v1/Systems/437XR1138R2/EthernetInterfaces"},
		"Actions": {"#ComputerSystem.Reset": {"target": "/redfish/v1/Systems/437XR1138R2/Actions/ComputerSystem.Reset",
			"ResetType@Redfish.AllowableValues": ["On", "ForceOff", "GracefulShutdown", "GracefulRestart", "ForceRestart", "Nmi", "ForceOn", "PushPowerButton"]}, "Oem": {}}}`,
	"/redfish/v1/Systems/437XR1138R2/Processors": `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors", "Name": "Processors", "Members@odata.count": 3, "Members": [
		{"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors/CPU1"}, {"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors/CPU2"}, {"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors/FPGA1"}]}`,
	"/redfish/v1/Systems/437XR1138R2/Processors/CPU1":  `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors/CPU1", "Id": "CPU1", "Name": "Processor", "ProcessorType": "CPU", "Model": "Multi-Core Intel(R) Xeon(R) processor 7500 Series", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/Systems/437XR1138R2/Processors/CPU2":  `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors/CPU2", "Id": "CPU2", "Name": "Processor", "ProcessorType": "CPU", "Status": {"State": "Absent"}}`,
	"/redfish/v1/Systems/437XR1138R2/Processors/FPGA1": `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/Processors/FPGA1", "Id": "FPGA1", "Name": "FPGA", "ProcessorType": "FPGA", "Model": "Stratix 10", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/Systems/437XR1138R2/EthernetInterfaces": `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/EthernetInterfaces", "Name": "Ethernet Interface Collection", "Members@odata.count": 2, "Members": [
		{"@odata.id": "/redfish/v1/Systems/437XR1138R2/EthernetInterfaces/1"}, {"@odata.id": "/redfish/v1/Systems/437XR1138R2/EthernetInterfaces/2"}]}`,
	"/redfish/v1/Systems/437XR1138R2/EthernetInterfaces/1": `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/EthernetInterfaces/1", "Id": "1", "Name": "Ethernet Interface", "PermanentMACAddress": "12:44:6A:3B:04:11", "MACAddress": "12:44:6A:3B:04:11", "SpeedMbps": 1000}`,
	"/redfish/v1/Systems/437XR1138R2/EthernetInterfaces/2": `{"@odata.id": "/redfish/v1/Systems/437XR1138R2/EthernetInterfaces/2", "Id": "2", "Name": "Ethernet Interface", "PermanentMACAddress": "AA:BB:CC:DD:EE:FF", "MACAddress": "AA:BB:CC:DD:EE:FF"}`,
	"/redfish/v1/Chassis":    `{"@odata.id": "/redfish/v1/Chassis", "Name": "Chassis Collection", "Members@odata.count": 1, "Members": [{"@odata.id": "/redfish/v1/Chassis/1U"}]}`,
	"/redfish/v1/Chassis/1U": `{"@odata.id": "/redfish/v1/Chassis/1U", "Id": "1U", "Name": "Computer System Chassis", "ChassisType": "RackMount", "Sensors": {"@odata.id": "/redfish/v1/Chassis/1U/Sensors"}}`,
	"/redfish/v1/Chassis/1U/Sensors": `{"@odata.id": "/redfish/v1/Chassis/1U/Sensors", "Name": "Sensors", "Members": [
		{"@odata.id": "/redfish/v1/Chassis/1U/Sensors/CPU1Temp"}, {"@odata.id": "/redfish/v1/Chassis/1U/Sensors/CPUFan1"}, {"@odata.id": "/redfish/v1/Chassis/1U/Sensors/TotalPower"}, {"@odata.id": "/redfish/v1/Chassis/1U/Sensors/Gone"}]}`,
	"/redfish/v1/Chassis/1U/Sensors/CPU1Temp":   `{"@odata.id": "/redfish/v1/Chassis/1U/Sensors/CPU1Temp", "Id": "CPUTemp1", "Name": "CPU #1 Temperature", "Status": {"State": "Enabled", "Health": "OK"}, "Reading": 37, "ReadingUnits": "Cel", "Thresholds": {"UpperCaution": {"Reading": 42}, "UpperCritical": {"Reading": 45}, "UpperFatal": {"Reading": 50}}}`,
	"/redfish/v1/Chassis/1U/Sensors/CPUFan1":    `{"@odata.id": "/redfish/v1/Chassis/1U/Sensors/CPUFan1", "Id": "CPUFan1", "Name": "CPU #1 Fan Speed", "Reading": 80, "ReadingType": "Percent", "ReadingUnits": "%", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/Chassis/1U/Sensors/TotalPower": `{"@odata.id": "/redfish/v1/Chassis/1U/Sensors/TotalPower", "Id": "TotalPower", "Name": "Total Power", "Reading": 374, "ReadingUnits": "W", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/Managers":                      `{"@odata.id": "/redfish/v1/Managers", "Name": "Manager Collection", "Members@odata.count": 1, "Members": [{"@odata.id": "/redfish/v1/Managers/BMC"}]}`,
	"/redfish/v1/Managers/BMC":                  `{"@odata.id": "/redfish/v1/Managers/BMC", "Id": "BMC", "Name": "Manager", "ManagerType": "BMC", "Model": "Joo Janta 200", "FirmwareVersion": "1.45.455b66-rev4", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/UpdateService":                 `{"@odata.id": "/redfish/v1/UpdateService", "Id": "UpdateService", "Name": "Update service", "ServiceEnabled": true, "FirmwareInventory": {"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory"}}`,
	"/redfish/v1/UpdateService/FirmwareInventory": `{"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory", "Name": "Firmware Collection", "Members@odata.count": 2, "Members": [
		{"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory/BMC"}, {"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory/BIOS"}]}`,
	"/redfish/v1/UpdateService/FirmwareInventory/BIOS": `{"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory/BIOS", "Id": "BIOS", "Name": "Contoso BIOS Firmware", "Updateable": true, "Version": "P79 v1.45", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/UpdateService/FirmwareInventory/BMC":  `{"@odata.id": "/redfish/v1/UpdateService/FirmwareInventory/BMC", "Id": "BMC", "Name": "Contoso BMC Firmware", "Updateable": true, "Version": "1.45.455b66-rev4", "Status": {"State": "Enabled", "Health": "OK"}}`,
	"/redfish/v1/SessionService":                       `{"@odata.id": "/redfish/v1/SessionService", "Id": "SessionService", "Name": "Session Service", "Sessions": {"@odata.id": "/redfish/v1/SessionService/Sessions"}}`,
}

// mockup serves resources with sessions, and remembers what was asked of it.
type mockup struct {
	mu    sync.Mutex
	asked []string
	open  int
}

func (m *mockup) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	defer m.mu.Unlock()
	path := strings.TrimSuffix(r.URL.Path, "/")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.Method == http.MethodPost && path == "/redfish/v1/SessionService/Sessions":
		m.open++
		w.Header().Set("X-Auth-Token", "t1")
		w.Header().Set("Location", "/redfish/v1/SessionService/Sessions/1")
		w.WriteHeader(http.StatusCreated)
		w.Write([]byte(`{"@odata.id": "/redfish/v1/SessionService/Sessions/1", "Id": "1", "Name": "Session"}`)) //nolint:errcheck // to a test
	case r.Method == http.MethodDelete:
		m.open--
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodGet && rackmount[path] != "":
		w.Write([]byte(rackmount[path])) //nolint:errcheck // to a test
	case r.Method == http.MethodPost || r.Method == http.MethodPatch:
		var body map[string]any
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		b, _ := json.Marshal(body) //nolint:errcheck // was decoded
		m.asked = append(m.asked, r.Method+" "+path+" "+string(b))
		w.WriteHeader(http.StatusNoContent)
	default:
		http.NotFound(w, r)
	}
}

func TestPublicMockup(t *testing.T) {
	m := &mockup{}
	ts := httptest.NewTLSServer(m)
	defer ts.Close()
	h := sha256.Sum256(ts.Certificate().Raw)
	l := &lab{target: bmc.Target{URL: ts.URL, User: "root", Password: "s3cret", Pin: hex.EncodeToString(h[:])}}
	critical := 45.0
	err := l.with(t, func(s *bmc.Session) error {
		got, err := s.Machine()
		if err != nil {
			return err
		}
		want := &fleet.Machine{Vendor: "Contoso", Model: "3500", Serial: "437XR1138R2", SKU: "8675309", UUID: "38947555-7742-3448-3784-823347823834", System: "437XR1138R2", Power: "On", Health: "OK",
			BIOSVersion: "P79 v1.45 (12/06/2017)", MemoryGiB: 64, BMC: fleet.BMCInfo{Model: "Joo Janta 200", Firmware: "1.45.455b66-rev4", Redfish: "1.15.0"},
			Processors: []fleet.Processor{{ID: "CPU1", Kind: "CPU", Model: "Multi-Core Intel(R) Xeon(R) processor 7500 Series", Health: "OK"}, {ID: "FPGA1", Kind: "FPGA", Model: "Stratix 10", Health: "OK"}},
			MACs:       []fleet.MAC{"12:44:6a:3b:04:11", "aa:bb:cc:dd:ee:ff"}}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("machine (-want +got):\n%s", d)
		}
		fw, err := s.Firmware()
		if err != nil {
			return err
		}
		if d := cmp.Diff([]fleet.Firmware{{ID: "BIOS", Name: "Contoso BIOS Firmware", Version: "P79 v1.45", Updateable: true}, {ID: "BMC", Name: "Contoso BMC Firmware", Version: "1.45.455b66-rev4", Updateable: true}}, fw); d != "" {
			t.Errorf("firmware (-want +got):\n%s", d)
		}
		sensors, err := s.Sensors()
		if err != nil {
			return err
		}
		if d := cmp.Diff([]fleet.Sensor{
			{Name: "CPU #1 Fan Speed", Kind: "fan", Reading: 80, Unit: "%", Health: "OK"}, {Name: "Total Power", Kind: "power", Reading: 374, Unit: "W", Health: "OK"},
			{Name: "CPU #1 Temperature", Kind: "temperature", Reading: 37, Unit: "°C", Critical: &critical, Health: "OK"},
		}, sensors); d != "" {
			t.Errorf("sensors (-want +got):\n%s", d)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if m.open != 0 || len(m.asked) != 0 {
		t.Errorf("looking left %d sessions open, and asked for %q", m.open, m.asked)
	}
}
