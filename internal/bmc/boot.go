package bmc

import (
	"fmt"

	"github.com/stmcginnis/gofish/redfish"

	"github.com/turnout-project/turnout/internal/fleet"
)

var bootTargets = map[fleet.BootTarget]redfish.BootSourceOverrideTarget{
	fleet.BootPXE:  redfish.PxeBootSourceOverrideTarget,
	fleet.BootHTTP: redfish.UefiHTTPBootSourceOverrideTarget,
	fleet.BootDisk: redfish.HddBootSourceOverrideTarget,
	fleet.BootNone: redfish.NoneBootSourceOverrideTarget,
}

// bootDoc is the part of a system (or its pending settings) that matters for
// the next boot.
type bootDoc struct {
	Boot struct {
		Enabled string `json:"BootSourceOverrideEnabled"`
		Mode    string `json:"BootSourceOverrideMode"`
		Target  string `json:"BootSourceOverrideTarget"`
	}
	Settings struct{ SettingsObject link } `json:"@Redfish.Settings"`
	ETag     string                        `json:"@odata.etag"`
}

// BootOnce sets what the machine boots next time, once, in UEFI mode, and
// reads back whether the BMC has taken it: some answer 200 and do not, some
// answer 400 and do.
func (s *Session) BootOnce(t fleet.BootTarget) error {
	target, ok := bootTargets[t]
	if !ok {
		return fmt.Errorf("boot target %q: want pxe, http, disk or none", t)
	}
	if t == fleet.BootHTTP && s.quirks.any(func(q Quirk) bool { return q.NoHTTPBoot }) {
		return fmt.Errorf("BMC %s: machines of this kind do not take HTTP boot from their BMC; use pxe", s.target.URL)
	}
	var doc bootDoc
	etag, err := s.get(s.system.ODataID, &doc)
	if err != nil {
		return s.explain("reading the boot settings", err)
	}
	path := s.system.ODataID
	if to := doc.Settings.SettingsObject.ID; to != "" && s.quirks.any(func(q Quirk) bool { return q.BootSettings }) {
		path = to
		var pending bootDoc
		if etag, err = s.get(path, &pending); err != nil {
			return s.explain("reading the pending settings", err)
		}
		doc.ETag = pending.ETag
	}
	headers := map[string]string{}
	if etag == "" {
		etag = doc.ETag
	}
	if etag != "" && s.quirks.any(func(q Quirk) bool { return q.BootETag }) {
		headers["If-Match"] = etag
	}
	resp, err := s.c.PatchWithHeaders(path, s.override(target, doc), headers)
	if resp != nil {
		resp.Body.Close()
	}
	if s.bootTaken(path, target) {
		return nil
	}
	if err != nil {
		return s.explain("setting the next boot to "+string(target), err)
	}
	return fmt.Errorf("BMC %s: it answered that the next boot is set to %s, but does not say so when asked", s.target.URL, target)
}

// override is the body of the change.
func (s *Session) override(target redfish.BootSourceOverrideTarget, doc bootDoc) map[string]any {
	boot := map[string]any{"BootSourceOverrideTarget": target, "BootSourceOverrideEnabled": "Once"}
	if target == redfish.NoneBootSourceOverrideTarget {
		boot["BootSourceOverrideEnabled"] = "Disabled"
	}
	switch mode := s.quirks.bootMode(); {
	case mode == "omit":
	case mode == "send", doc.Boot.Mode != "":
		boot["BootSourceOverrideMode"] = "UEFI"
	}
	return map[string]any{"Boot": boot}
}

func (s *Session) bootTaken(path string, target redfish.BootSourceOverrideTarget) bool {
	var now bootDoc
	if _, err := s.get(path, &now); err != nil {
		return false
	}
	if target == redfish.NoneBootSourceOverrideTarget {
		return now.Boot.Enabled == "Disabled" || now.Boot.Target == "None"
	}
	return now.Boot.Target == string(target) && now.Boot.Enabled == "Once" && now.Boot.Mode != "Legacy"
}
