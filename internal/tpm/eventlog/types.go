package eventlog

import "fmt"

// Type is the kind of an event (TCG PC Client Platform Firmware Profile
// section 10.4.1). It is not covered by the digest: whoever keeps the log can
// change it.
type Type uint32

// The event types that this program looks at.
const (
	NoAction               Type = 0x00000003
	Separator              Type = 0x00000004
	Action                 Type = 0x00000005
	EventTag               Type = 0x00000006
	SCRTMVersion           Type = 0x00000008
	IPL                    Type = 0x0000000d
	EFIVariableDriverCfg   Type = 0x80000001
	EFIVariableBoot        Type = 0x80000002
	EFIBootServicesApp     Type = 0x80000003
	EFIBootServicesDriver  Type = 0x80000004
	EFIRuntimeDriver       Type = 0x80000005
	EFIGPTEvent            Type = 0x80000006
	EFIAction              Type = 0x80000007
	EFIPlatformFirmware    Type = 0x80000008
	EFIHandoffTables       Type = 0x80000009
	EFIPlatformFirmware2   Type = 0x8000000a
	EFIHandoffTables2      Type = 0x8000000b
	EFIVariableBoot2       Type = 0x8000000c
	EFIGPTEvent2           Type = 0x8000000d
	EFIHCRTMEvent          Type = 0x80000010
	EFIVariableAuthority   Type = 0x800000e0
	EFISPDMFirmwareBlob    Type = 0x800000e1
	EFISPDMFirmwareConfig  Type = 0x800000e2
	EFISPDMDevicePolicy    Type = 0x800000e3
	EFISPDMDeviceAuthority Type = 0x800000e4
)

var typeNames = map[Type]string{
	0x00000000:             "EV_PREBOOT_CERT",
	0x00000001:             "EV_POST_CODE",
	0x00000002:             "EV_UNUSED",
	NoAction:               "EV_NO_ACTION",
	Separator:              "EV_SEPARATOR",
	Action:                 "EV_ACTION",
	EventTag:               "EV_EVENT_TAG",
	0x00000007:             "EV_S_CRTM_CONTENTS",
	SCRTMVersion:           "EV_S_CRTM_VERSION",
	0x00000009:             "EV_CPU_MICROCODE",
	0x0000000a:             "EV_PLATFORM_CONFIG_FLAGS",
	0x0000000b:             "EV_TABLE_OF_DEVICES",
	0x0000000c:             "EV_COMPACT_HASH",
	IPL:                    "EV_IPL",
	0x0000000e:             "EV_IPL_PARTITION_DATA",
	0x0000000f:             "EV_NONHOST_CODE",
	0x00000010:             "EV_NONHOST_CONFIG",
	0x00000011:             "EV_NONHOST_INFO",
	0x00000012:             "EV_OMIT_BOOT_DEVICE_EVENTS",
	0x00000013:             "EV_POST_CODE2",
	EFIVariableDriverCfg:   "EV_EFI_VARIABLE_DRIVER_CONFIG",
	EFIVariableBoot:        "EV_EFI_VARIABLE_BOOT",
	EFIBootServicesApp:     "EV_EFI_BOOT_SERVICES_APPLICATION",
	EFIBootServicesDriver:  "EV_EFI_BOOT_SERVICES_DRIVER",
	EFIRuntimeDriver:       "EV_EFI_RUNTIME_SERVICES_DRIVER",
	EFIGPTEvent:            "EV_EFI_GPT_EVENT",
	EFIAction:              "EV_EFI_ACTION",
	EFIPlatformFirmware:    "EV_EFI_PLATFORM_FIRMWARE_BLOB",
	EFIHandoffTables:       "EV_EFI_HANDOFF_TABLES",
	EFIPlatformFirmware2:   "EV_EFI_PLATFORM_FIRMWARE_BLOB2",
	EFIHandoffTables2:      "EV_EFI_HANDOFF_TABLES2",
	EFIVariableBoot2:       "EV_EFI_VARIABLE_BOOT2",
	EFIGPTEvent2:           "EV_EFI_GPT_EVENT2",
	EFIHCRTMEvent:          "EV_EFI_HCRTM_EVENT",
	EFIVariableAuthority:   "EV_EFI_VARIABLE_AUTHORITY",
	EFISPDMFirmwareBlob:    "EV_EFI_SPDM_FIRMWARE_BLOB",
	EFISPDMFirmwareConfig:  "EV_EFI_SPDM_FIRMWARE_CONFIG",
	EFISPDMDevicePolicy:    "EV_EFI_SPDM_DEVICE_POLICY",
	EFISPDMDeviceAuthority: "EV_EFI_SPDM_DEVICE_AUTHORITY",
}

// String returns the specification's name, or the number for a type that it
// does not have (vendors invent some).
func (t Type) String() string {
	if n, ok := typeNames[t]; ok {
		return n
	}
	return fmt.Sprintf("event type %#08x", uint32(t))
}
