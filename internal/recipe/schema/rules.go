package schema

import (
	"regexp"
	"strings"
)

func enum(values ...string) func(*node)    { return func(n *node) { n.Enum = values } }
func required(names ...string) func(*node) { return func(n *node) { n.Required = names } }
func pattern(p string) func(*node)         { return func(n *node) { n.Pattern = p } }
func between(least, most int) func(*node) {
	return func(n *node) { n.Minimum, n.Maximum = &least, &most }
}

// constraints are what the types do not say. Fields of maps are not required,
// since an extended recipe may have them.
var constraints = map[string]func(*node){
	"name":                          pattern(`^[a-z0-9][a-z0-9._-]*$`),
	"architecture":                  enum("amd64", "arm64"),
	"updates":                       enum("disabled"),
	"base.distribution":             enum("debian"),
	"base.sources[]":                required("uri", "suites", "components"),
	"base.sources[].uri":            pattern(`^https?://`),
	"base.keyring":                  pattern(`^/`),
	"kernel.package":                pattern(`^linux-image-`),
	"files[]":                       required("path"),
	"files[].path":                  pattern(`^/`),
	"files[].mode":                  pattern(`^[0-7]{3,4}$`),
	"users[]":                       required("name", "uid"),
	"users[].uid":                   between(1000, 59999),
	"boot.verify":                   enum("full", "lazy"),
	"disk.bus[]":                    enum("nvme", "scsi", "virtio"),
	"health.checks[]":               required("name"),
	"health.checks[].class":         enum("software", "hardware", "environment"),
	"health.checks[].units":         enum("no-failed"),
	"health.checks[].kernel":        enum("pinned"),
	"driver.family":                 enum("nvidia"),
	"driver.flavour":                enum("open", "proprietary"),
	"driver.accept[]":               required("rule", "reason"),
	"firmware.gsp":                  enum("needed", "all"),
	"firmware.require[]":            required("component"),
	"firmware.require[].component":  enum("bios", "vbios", "nic"),
	"gpu.mig.layouts[]":             required("name", "gpus"),
	"gpu.mig.tool":                  enum("mig-parted", "nvidia-smi"),
	"gpu.sharing.mode":              enum("time-slicing", "mps"),
	"gpu.sharing.resources[]":       required("name", "replicas"),
	"gpu.device_plugin.strategy":    enum("none", "single", "mixed"),
	"gpu.device_plugin.device_list": enum("envvar", "volume-mounts", "cdi-annotations", "cdi-cri"),
	"gpu.device_plugin.device_id":   enum("uuid", "index"),
	"gpu.vgpu.role":                 enum("host", "guest"),
	"gpu.cdmm":                      enum("on", "off"),
	"gpu.ecc":                       enum("on", "off"),
	"egress.policy":                 enum("deny"),
	"egress.allow[]":                required("name", "to"),
	"egress.allow[].protocol":       enum("tcp", "udp", "icmp"),
}

var (
	heading    = regexp.MustCompile("^### `([a-z_]+)`$")
	subheading = regexp.MustCompile("^`([a-z_]+)`:$")
	row        = regexp.MustCompile("^\\| `([^`]+)` \\| (.*) \\|$")
	link       = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// descriptions reads the tables of recipe.md: for each field the last column,
// and the default if there is one.
func descriptions(doc []byte, n *node) map[string]string {
	all := map[string]string{}
	section, prefix, header := "", "", ""
	inFields := false
	for line := range strings.Lines(string(doc)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "## "):
			inFields = line == "## Fields"
			prefix = ""
		case !inFields:
		case heading.MatchString(line):
			section = heading.FindStringSubmatch(line)[1]
			prefix = within(n, section)
		case subheading.MatchString(line):
			prefix = within(n, section+"."+subheading.FindStringSubmatch(line)[1])
		case strings.HasPrefix(line, "| field"):
			if header = line; strings.Contains(header, "passes when") {
				prefix = "health.checks[]."
			}
		case row.MatchString(line):
			m := row.FindStringSubmatch(line)
			all[prefix+m[1]] = describe(strings.Split(m[2], " | "))
		}
	}
	return all
}

// within returns the prefix of the fields of an object, or of a list's items.
func within(n *node, path string) string {
	if f := n.find(path); f != nil && f.Items != nil {
		return path + "[]."
	}
	return path + "."
}

// describe joins the cells of a row after the field: type, default if there
// is such a column, meaning.
func describe(cells []string) string {
	text := link.ReplaceAllString(strings.TrimSpace(cells[len(cells)-1]), "$1")
	if len(cells) < 3 {
		return text
	}
	if d := strings.Trim(strings.TrimSpace(cells[1]), "|"); d != "" && d != "required" {
		text = strings.TrimSpace(text + " (default: " + d + ")")
	}
	return text
}
