package bmc

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Machine takes stock. What a BMC does not tell stays empty; only a system
// that cannot be read is an error.
func (s *Session) Machine() (*fleet.Machine, error) {
	state, err := s.Power()
	if err != nil {
		return nil, err
	}
	x := s.system
	m := &fleet.Machine{
		Vendor: oneLine(x.Manufacturer), Model: oneLine(x.Model), Serial: oneLine(x.SerialNumber), SKU: oneLine(x.SKU), UUID: strings.ToLower(x.UUID),
		System: x.ID, Power: state, Health: string(x.Status.Health), BIOSVersion: oneLine(x.BIOSVersion), MemoryGiB: float64(x.MemorySummary.TotalSystemMemoryGiB),
		BMC: fleet.BMCInfo{Redfish: s.c.Service.RedfishVersion}, Quirks: s.quirks.names(),
	}
	m.Processors = s.processors()
	if ifs, err := x.EthernetInterfaces(); err == nil {
		for _, i := range ifs {
			if mac, err := fleet.ParseMAC(cmp.Or(i.PermanentMACAddress, i.MACAddress)); err == nil && !slices.Contains(m.MACs, mac) {
				m.MACs = append(m.MACs, mac)
			}
		}
	}
	slices.Sort(m.MACs) // gofish fetches members at once, and returns them as they come
	if ms, err := s.c.Service.Managers(); err == nil {
		for _, g := range ms {
			if g.FirmwareVersion != "" && (m.BMC.Firmware == "" || g.ManagerType == "BMC" && !isPart(g.ID, "")) {
				m.BMC.Model, m.BMC.Firmware = oneLine(g.Model), oneLine(g.FirmwareVersion)
			}
		}
	}
	return m, nil
}

// processors lists those of the machine and of its parts: the GPUs of an HGX
// baseboard are processors of a system of their own.
func (s *Session) processors() []fleet.Processor {
	var out []fleet.Processor
	all, _ := s.c.Service.Systems()
	for _, x := range all {
		if x.ID != s.system.ID && !strings.HasPrefix(strings.ToLower(x.ID), "hgx_") {
			continue
		}
		ps, _ := x.Processors()
		for _, p := range ps {
			if p.Status.State == "Absent" {
				continue
			}
			out = append(out, fleet.Processor{ID: p.ID, Kind: string(p.ProcessorType), Model: oneLine(p.Model), Health: string(p.Status.Health)})
		}
	}
	slices.SortFunc(out, func(a, b fleet.Processor) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// Firmware lists the machine's firmware by ID.
func (s *Session) Firmware() ([]fleet.Firmware, error) {
	u, err := s.c.Service.UpdateService()
	if err != nil {
		return nil, s.explain("listing firmware", err)
	}
	list, err := u.FirmwareInventories()
	if err != nil && len(list) == 0 {
		return nil, s.explain("listing firmware", err)
	}
	out := []fleet.Firmware{}
	for _, f := range list {
		if f.Version == "" && f.Status.State == "Absent" {
			continue
		}
		out = append(out, fleet.Firmware{ID: oneLine(f.ID), Name: oneLine(f.Name), Version: oneLine(f.Version), Updateable: f.Updateable})
	}
	slices.SortFunc(out, func(a, b fleet.Firmware) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// sensorDoc is Sensor (DSP0268), with what may be null as a pointer.
type sensorDoc struct {
	Name         string
	ReadingType  string
	Reading      *float64
	ReadingUnits string
	Status       struct{ State, Health string }
	Thresholds   struct{ UpperCritical struct{ Reading *float64 } }
}

// thermalDoc and powerDoc are Thermal and Power, which older BMCs have.
type thermalDoc struct {
	Temperatures []struct {
		Name                   string
		ReadingCelsius         *float64
		UpperThresholdCritical *float64
		Status                 struct{ State, Health string }
	}
	Fans []struct {
		Name, FanName, ReadingUnits string
		Reading                     *float64
		Status                      struct{ State, Health string }
	}
}

type powerDoc struct {
	PowerControl []struct {
		Name               string
		PowerConsumedWatts *float64
		Status             struct{ State, Health string }
	}
}

// Sensors reads the sensors of every chassis. Those without a reading are
// left out.
func (s *Session) Sensors() ([]fleet.Sensor, error) {
	chassis, err := s.members("/redfish/v1/Chassis")
	if err != nil {
		return nil, s.explain("listing chassis", err)
	}
	out := []fleet.Sensor{}
	for _, path := range chassis {
		var c struct{ Sensors, Thermal, Power link }
		if _, err := s.get(path, &c); err != nil {
			continue
		}
		more := s.modern(c.Sensors.ID)
		if len(more) == 0 {
			more = append(s.thermal(c.Thermal.ID), s.power(c.Power.ID)...)
		}
		out = append(out, more...)
	}
	if len(out) == 0 {
		return nil, s.explain("reading sensors", errors.New("no chassis shows any"))
	}
	slices.SortStableFunc(out, func(a, b fleet.Sensor) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}

func (s *Session) modern(path string) (out []fleet.Sensor) {
	if path == "" {
		return nil
	}
	ids, _ := s.members(path)
	for _, id := range ids {
		var d sensorDoc
		if _, err := s.get(id, &d); err != nil || d.Reading == nil || d.Status.State == "Absent" || d.Status.State == "Disabled" {
			continue
		}
		kind := strings.ToLower(d.ReadingType)
		if kind == "" { // DMTF's own mockup leaves it out
			kind = kindOf[d.ReadingUnits]
		}
		if kind == "rotational" || d.ReadingType == "Percent" && strings.Contains(strings.ToLower(d.Name), "fan") {
			kind = "fan"
		}
		out = append(out, fleet.Sensor{Name: oneLine(d.Name), Kind: kind, Reading: *d.Reading, Unit: unit(d.ReadingUnits),
			Critical: d.Thresholds.UpperCritical.Reading, Health: d.Status.Health})
	}
	return out
}

func (s *Session) thermal(path string) (out []fleet.Sensor) {
	var d thermalDoc
	if path == "" {
		return nil
	}
	if _, err := s.get(path, &d); err != nil {
		return nil
	}
	for _, t := range d.Temperatures {
		if t.ReadingCelsius != nil && t.Status.State != "Absent" && t.Status.State != "Disabled" {
			out = append(out, fleet.Sensor{Name: oneLine(t.Name), Kind: "temperature", Reading: *t.ReadingCelsius, Unit: "°C", Critical: t.UpperThresholdCritical, Health: t.Status.Health})
		}
	}
	for _, f := range d.Fans {
		if f.Reading != nil && f.Status.State != "Absent" {
			out = append(out, fleet.Sensor{Name: oneLine(cmp.Or(f.Name, f.FanName)), Kind: "fan", Reading: *f.Reading, Unit: unit(cmp.Or(f.ReadingUnits, "RPM")), Health: f.Status.Health})
		}
	}
	return out
}

func (s *Session) power(path string) (out []fleet.Sensor) {
	var d powerDoc
	if path == "" {
		return nil
	}
	if _, err := s.get(path, &d); err != nil {
		return nil
	}
	for _, p := range d.PowerControl {
		if p.PowerConsumedWatts != nil {
			out = append(out, fleet.Sensor{Name: oneLine(cmp.Or(p.Name, "power")), Kind: "power", Reading: *p.PowerConsumedWatts, Unit: "W", Health: p.Status.Health})
		}
	}
	return out
}

// kindOf is what a sensor measures, by its unit in UCUM, where it does not say.
var kindOf = map[string]string{"Cel": "temperature", "W": "power", "V": "voltage", "A": "current", "{rev}/min": "rotational", "RPM": "rotational", "kW.h": "energykwh"}

// unit makes UCUM's "Cel" readable.
func unit(u string) string {
	switch u {
	case "Cel":
		return "°C"
	case "{rev}/min":
		return "RPM"
	case "Percent":
		return "%"
	}
	return u
}
