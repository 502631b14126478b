package main

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples are shown in the help of commands that bring none of their own,
// by their path.
var examples = map[string]string{
	"baseline approve":  "pxeserver baseline approve 3f2a9c01d4e5",
	"attest":            "pxeserver attest rack1-07",
	"baseline announce": "pxeserver baseline announce --like 3f2a9c01d4e5 --dbx dbx.esl --reason 'dbx of 2026-12'\npxeserver baseline announce --log binary_bios_measurements --vendor ACME --product R1 --bios 2.2",
	"baseline forget":   "pxeserver baseline forget 3f2a9c01d4e5",
	"image restore":     "pxeserver image restore 'rack-base 42'",
	"image revoke":      "pxeserver image revoke 9f86d081884c --reason 'CVE-2026-1234 in its kernel'",
	"baseline list":     "pxeserver baseline list",
	"bmc boot":          "pxeserver bmc boot r1-n07 pxe",
	"bmc firmware":      "pxeserver bmc firmware r1-n07",
	"bmc inventory":     "pxeserver bmc inventory r1-n07 -o json",
	"bmc list":          "pxeserver bmc list",
	"bmc remove":        "pxeserver bmc remove r1-n07",
	"bmc sensors":       "pxeserver bmc sensors r1-n07",
	"bmc set":           "pxeserver bmc set r1-n07 --address 10.0.9.7 --user turnout --password-file bmc.pw",
	"bmc update":        "pxeserver bmc update r1-n07 --file bios-2.4.bin --yes",
	"bmc show":          "pxeserver bmc show r1-n07",
	"check-config":      "pxeserver check-config --config /etc/turnout/pxeserver.yaml",
	"image list":        "pxeserver image list",
	"node clear-tpm":    "pxeserver node clear-tpm r1-n07",
	"node cordon":       "pxeserver node cordon r1-n07 r1-n08 --reason \"replacing DIMM 3\"",
	"node list":         "pxeserver node list --state pending",
	"node remove":       "pxeserver node remove r1-n07",
	"node revoke":       "pxeserver node revoke r1-n07",
	"node show":         "pxeserver node show r1-n07",
	"node unban":        "pxeserver node unban r1-n07 --image \"rack-base 1.1.0\"",
	"node uncordon":     "pxeserver node uncordon r1-n07",
	"pool list":         "pxeserver pool list",
	"power cycle":       "pxeserver power cycle r1-n07 --reason \"GPU fell off the bus\"",
	"power off":         "pxeserver power off r1-n07",
	"power on":          "pxeserver power on r1-n07",
	"power status":      "pxeserver power status r1-n07",
	"reimage":           "pxeserver reimage r1-n07",
	"restore":           "pxeserver restore /srv/backup/turnout-2026-03-01.tar",
	"rollout abort":     "pxeserver rollout abort r7 --flip-back --reason \"throughput is down\"",
	"rollout list":      "pxeserver rollout list",
	"rollout pause":     "pxeserver rollout pause r7 --reason \"until the switch is replaced\"",
	"rollout plan":      "pxeserver rollout plan --image \"rack-base 1.1.0\" --stage canary --stage rack --max-unavailable 25%",
	"rollout resume":    "pxeserver rollout resume r7",
	"rollout status":    "pxeserver rollout status --watch\npxeserver rollout status r7 --wait",
	"serve":             "pxeserver serve --config /etc/turnout/pxeserver.yaml",
	"token list":        "pxeserver token list",
	"verdict show":      "pxeserver verdict show r1-n07",
	"version":           "pxeserver version --remote",
}

// addExamples gives each command its example.
func addExamples(cmd *cobra.Command, path string) {
	for _, sub := range cmd.Commands() {
		p := sub.Name()
		if path != "" {
			p = path + " " + p
		}
		if e := examples[p]; e != "" && sub.Example == "" {
			sub.Example = indent(e)
		}
		addExamples(sub, p)
	}
}

func indent(s string) string { return "  " + strings.ReplaceAll(s, "\n", "\n  ") }
