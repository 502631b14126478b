package redfish

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

type object = map[string]any

func res(id, kind, name string, more object) object {
	o := object{"@odata.id": id, "@odata.type": "#" + kind, "Id": id[strings.LastIndexByte(id, '/')+1:], "Name": name}
	maps.Copy(o, more)
	return o
}

func to(id string) object { return object{"@odata.id": id} }

func listOf(id, kind string, members ...string) object {
	ms := []object{}
	for _, m := range members {
		ms = append(ms, to(id+"/"+m))
	}
	return res(id, kind+"."+kind, kind, object{"Members": ms, "Members@odata.count": len(ms)})
}

func (b *BMC) root() object {
	return res("/redfish/v1", "ServiceRoot.v1_15_0.ServiceRoot", "Root", object{
		"RedfishVersion": "1.17.0", "Vendor": cmp.Or(b.Manners.Vendor, "Turnout"), "Product": "virtual BMC",
		"Systems": to("/redfish/v1/Systems"), "Chassis": to("/redfish/v1/Chassis"), "Managers": to("/redfish/v1/Managers"),
		"UpdateService": to("/redfish/v1/UpdateService"), "SessionService": to("/redfish/v1/SessionService"),
		"Links": object{"Sessions": to("/redfish/v1/SessionService/Sessions")},
	})
}

func (b *BMC) read(w http.ResponseWriter, path string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := b.resource(path)
	if v == nil {
		refuse(w, http.StatusNotFound, "no resource "+path)
		return
	}
	b.show(w, v)
}

// resource returns what is at a path, nil for nothing. b is locked.
func (b *BMC) resource(path string) object {
	name := path[strings.LastIndexByte(path, '/')+1:]
	switch path {
	case "/redfish/v1/SessionService":
		return res(path, "SessionService.v1_1_8.SessionService", "Sessions", object{"Sessions": to(path + "/Sessions")})
	case "/redfish/v1/Systems":
		if b.Manners.Baseboard {
			return listOf(path, "ComputerSystemCollection", "HGX_Baseboard_0", "1")
		}
		return listOf(path, "ComputerSystemCollection", "1")
	case "/redfish/v1/Systems/1":
		return b.system(path)
	case "/redfish/v1/Systems/1/Settings":
		return res(path, "ComputerSystem.v1_20_0.ComputerSystem", "Pending", object{"Boot": b.boot, "@odata.etag": b.tag()})
	case "/redfish/v1/Systems/HGX_Baseboard_0":
		return res(path, "ComputerSystem.v1_20_0.ComputerSystem", "Baseboard", object{"SystemType": "Physical", "Processors": to(path + "/Processors")})
	case "/redfish/v1/Systems/HGX_Baseboard_0/Processors":
		return listOf(path, "ProcessorCollection", "GPU_0")
	case "/redfish/v1/Systems/HGX_Baseboard_0/Processors/GPU_0":
		return res(path, "Processor.v1_18_0.Processor", "GPU 0", object{"ProcessorType": "GPU", "Model": "Virtual GPU", "Status": ok})
	case "/redfish/v1/Systems/1/Processors":
		return listOf(path, "ProcessorCollection", "CPU0")
	case "/redfish/v1/Systems/1/Processors/CPU0":
		return res(path, "Processor.v1_18_0.Processor", "CPU 0", object{"ProcessorType": "CPU", "Model": "QEMU TCG", "Status": ok})
	case "/redfish/v1/Systems/1/EthernetInterfaces":
		return listOf(path, "EthernetInterfaceCollection", "NIC1")
	case "/redfish/v1/Systems/1/EthernetInterfaces/NIC1":
		return res(path, "EthernetInterface.v1_9_0.EthernetInterface", "NIC 1", object{"PermanentMACAddress": "52-54-00-77-00-01", "MACAddress": "00:00:00:00:00:00"})
	case "/redfish/v1/Managers":
		return listOf(path, "ManagerCollection", "BMC")
	case "/redfish/v1/Managers/BMC":
		return res(path, "Manager.v1_18_0.Manager", "BMC", object{"ManagerType": "BMC", "Model": "virtual", "FirmwareVersion": b.firmware["BMC"]})
	case "/redfish/v1/Chassis":
		return listOf(path, "ChassisCollection", "1U")
	case "/redfish/v1/Chassis/1U":
		o := res(path, "Chassis.v1_23_0.Chassis", "Chassis", object{"ChassisType": "RackMount", "Status": ok})
		if b.Manners.OldSensors {
			o["Thermal"], o["Power"] = to(path+"/Thermal"), to(path+"/Power")
		} else {
			o["Sensors"] = to(path + "/Sensors")
		}
		return o
	case "/redfish/v1/Chassis/1U/Sensors":
		return listOf(path, "SensorCollection", "Inlet", "Fan1", "Absent")
	case "/redfish/v1/Chassis/1U/Sensors/Inlet":
		return res(path, "Sensor.v1_7_0.Sensor", "Inlet", object{"ReadingType": "Temperature", "Reading": 24.5, "ReadingUnits": "Cel",
			"Thresholds": object{"UpperCritical": object{"Reading": 45}}, "Status": ok})
	case "/redfish/v1/Chassis/1U/Sensors/Fan1":
		return res(path, "Sensor.v1_7_0.Sensor", "Fan 1", object{"ReadingType": "Rotational", "Reading": 5400, "ReadingUnits": "{rev}/min", "Status": ok})
	case "/redfish/v1/Chassis/1U/Sensors/Absent":
		return res(path, "Sensor.v1_7_0.Sensor", "GPU 9", object{"ReadingType": "Temperature", "Reading": nil, "ReadingUnits": "Cel", "Status": object{"State": "Absent"}})
	case "/redfish/v1/Chassis/1U/Thermal":
		return res(path, "Thermal.v1_7_0.Thermal", "Thermal", object{
			"Temperatures": []object{{"Name": "Inlet", "ReadingCelsius": 24.5, "UpperThresholdCritical": 45, "Status": ok}, {"Name": "GPU 9", "ReadingCelsius": nil, "Status": object{"State": "Absent"}}},
			"Fans":         []object{{"FanName": "Fan 1", "Reading": 5400, "ReadingUnits": "RPM", "Status": ok}}})
	case "/redfish/v1/Chassis/1U/Power":
		return res(path, "Power.v1_7_0.Power", "Power", object{"PowerControl": []object{{"Name": "Chassis power", "PowerConsumedWatts": 310}}})
	case "/redfish/v1/UpdateService":
		return res(path, "UpdateService.v1_12_0.UpdateService", "Updates", object{"ServiceEnabled": true,
			"FirmwareInventory": to(path + "/FirmwareInventory"), "MultipartHttpPushUri": path + "/upload"})
	case "/redfish/v1/UpdateService/FirmwareInventory":
		return listOf(path, "SoftwareInventoryCollection", slices.Sorted(maps.Keys(b.firmware))...)
	case "/redfish/v1/TaskService/Tasks/1":
		return res(path, "Task.v1_7_0.Task", "Update", object{"TaskState": "Completed", "TaskStatus": "OK", "PercentComplete": 100})
	}
	if v := b.firmware[name]; v != "" && path == "/redfish/v1/UpdateService/FirmwareInventory/"+name {
		return res(path, "SoftwareInventory.v1_9_0.SoftwareInventory", name, object{"Version": v, "Updateable": name != "GPU1", "Status": ok})
	}
	return nil
}

var ok = object{"State": "Enabled", "Health": "OK"}

func (b *BMC) tag() string { return fmt.Sprintf(`W/"%d"`, b.etag) }

func (b *BMC) system(path string) object {
	power := "Off"
	if b.Machine.Running() {
		power = "On"
	}
	o := res(path, "ComputerSystem.v1_20_0.ComputerSystem", "Virtual machine", object{
		"@odata.etag": b.tag(), "SystemType": "Physical", "Manufacturer": cmp.Or(b.Manners.Vendor, "Turnout"), "Model": "Virtual node",
		"SerialNumber": "V1", "UUID": "7E57AB1E-0000-4000-8000-525400770001", "BiosVersion": b.firmware["BIOS"], "PowerState": power, "Status": ok,
		"MemorySummary": object{"TotalSystemMemoryGiB": 1}, "Boot": b.boot,
		"Processors": to(path + "/Processors"), "EthernetInterfaces": to(path + "/EthernetInterfaces"),
		"Actions": object{"#ComputerSystem.Reset": object{"target": path + "/Actions/ComputerSystem.Reset", "ResetType@Redfish.AllowableValues": b.resets()}},
	})
	if b.Manners.Settings {
		o["@Redfish.Settings"] = object{"@odata.type": "#Settings.v1_3_5.Settings", "SettingsObject": to(path + "/Settings")}
	}
	return o
}

// patch sets the boot override.
func (b *BMC) patch(w http.ResponseWriter, r *http.Request, path string) {
	var in struct{ Boot boot }
	err := json.NewDecoder(io.LimitReader(r.Body, 1<<16)).Decode(&in)
	b.mu.Lock()
	defer b.mu.Unlock()
	where := "/redfish/v1/Systems/1"
	if b.Manners.Settings {
		where += "/Settings"
	}
	switch {
	case err != nil:
		refuse(w, http.StatusBadRequest, err.Error())
		return
	case path != where:
		refuse(w, http.StatusMethodNotAllowed, "Boot is read-only here")
		return
	case b.Manners.NeedETag && r.Header.Get("If-Match") != b.tag():
		refuse(w, http.StatusPreconditionFailed, "If-Match is missing or old")
		return
	case b.Manners.RefuseMode && in.Boot.Mode != "":
		refuse(w, http.StatusBadRequest, "BootSourceOverrideMode is read-only")
		return
	case b.Manners.NeedMode && in.Boot.Mode == "":
		in.Boot.Mode, in.Boot.Enabled = "Legacy", "Disabled"
	}
	b.boot, b.etag = in.Boot, b.etag+1
	if b.boot.Mode == "" {
		b.boot.Mode = "UEFI"
	}
	w.WriteHeader(http.StatusNoContent)
}

// upload takes a firmware file: "NAME=VERSION" makes NAME be of VERSION.
func (b *BMC) upload(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(8 << 20); err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	f, _, err := r.FormFile("UpdateFile")
	if err != nil || !json.Valid([]byte(r.FormValue("UpdateParameters"))) {
		refuse(w, http.StatusBadRequest, "want UpdateParameters and UpdateFile")
		return
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, 64<<20))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	b.mu.Lock()
	b.uploads = append(b.uploads, body)
	if name, version, ok := strings.Cut(string(body), "="); ok && b.firmware[name] != "" {
		b.firmware[name] = version
	}
	b.mu.Unlock()
	w.Header().Set("Location", "/redfish/v1/TaskService/Tasks/1")
	w.WriteHeader(http.StatusAccepted)
}
