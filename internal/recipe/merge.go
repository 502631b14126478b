package recipe

import (
	"strings"

	"gopkg.in/yaml.v3"
)

// merge lays recipe over base, in base: mappings merge, lists append, scalars
// override. A list item that names the same thing as one of base (see
// identity) takes its place. Packages that recipe removes are taken out of
// base first, and units that it enables are no longer masked, or the other
// way round. A nil base only checks that nothing is removed.
func (l *loader) merge(base, recipe *yaml.Node) error {
	remove := lookup(recipe, "remove")
	if remove != nil && remove.Kind == yaml.SequenceNode {
		if err := l.remove(base, remove); err != nil {
			return err
		}
	}
	if base == nil {
		return nil
	}
	drop(base, "remove") // has done its work when base itself was merged
	switchUnits(base, recipe, "enable", "mask")
	switchUnits(base, recipe, "mask", "enable")
	return l.mergeMapping(base, recipe, "")
}

func (l *loader) mergeMapping(base, over *yaml.Node, field string) error {
	base.Line, base.Column = over.Line, over.Column
	l.files[base] = l.files[over]
	for i := 0; i < len(over.Content); i += 2 {
		key, value := over.Content[i], over.Content[i+1]
		at := index(base, key.Value)
		if at < 0 {
			base.Content = append(base.Content, key, value)
			continue
		}
		if err := l.mergeValue(base.Content[at:at+2], key, value, strings.TrimPrefix(field+"."+key.Value, ".")); err != nil {
			return err
		}
	}
	return nil
}

// mergeValue merges value into the pair of key and value of base.
func (l *loader) mergeValue(pair []*yaml.Node, key, value *yaml.Node, field string) error {
	old := pair[1]
	if old.Kind != value.Kind {
		return l.place(value).errorf("", "%s: got %s, but the recipe it extends has %s (%s:%d)",
			field, describe(value), describe(old), l.files[old], old.Line)
	}
	switch value.Kind {
	case yaml.MappingNode:
		return l.mergeMapping(old, value, field)
	case yaml.SequenceNode:
		pair[1] = l.appendItems(old, value, field)
	default:
		pair[0], pair[1] = key, value
	}
	return nil
}

// appendItems returns the items of old, each replaced by the one of value
// that names the same thing, and then the new ones of value.
func (l *loader) appendItems(old, value *yaml.Node, field string) *yaml.Node {
	at := map[string]int{}
	for i, n := range old.Content {
		if id := identity(field, n); id != "" {
			at[id] = i
		}
	}
	items := append([]*yaml.Node(nil), old.Content...)
	for _, n := range value.Content {
		if i, ok := at[identity(field, n)]; ok {
			items[i] = n
			continue
		}
		items = append(items, n)
	}
	list := *value
	list.Content = items
	l.files[&list] = l.files[value]
	return &list
}

// remove takes the named packages out of base.
func (l *loader) remove(base, names *yaml.Node) error {
	if base == nil {
		return l.place(names).errorf("leave the packages out of the list instead", "remove: this recipe extends no other")
	}
	for _, name := range names.Content {
		packages := lookup(base, "packages")
		if packages == nil || !cutItem(packages, name.Value) {
			return l.place(name).errorf("remove names packages of the recipe it extends", "remove: package %q is not in it", name.Value)
		}
	}
	return nil
}

// switchUnits takes the units that recipe has in services.now out of
// services.before of base: a unit that was masked can be enabled again.
func switchUnits(base, recipe *yaml.Node, now, before string) {
	units := lookupPath(recipe, "services", now)
	old := lookupPath(base, "services", before)
	if units == nil || old == nil {
		return
	}
	for _, u := range units.Content {
		cutItem(old, u.Value)
	}
}

// lookupPath is lookup along several keys.
func lookupPath(n *yaml.Node, keys ...string) *yaml.Node {
	for _, k := range keys {
		if n == nil || n.Kind != yaml.MappingNode {
			return nil
		}
		n = lookup(n, k)
	}
	return n
}

// cutItem takes the package or unit of that name out of a list.
func cutItem(list *yaml.Node, name string) bool {
	for i, n := range list.Content {
		if identity("packages", n) == name {
			list.Content = append(list.Content[:i:i], list.Content[i+1:]...)
			return true
		}
	}
	return false
}

// identity returns what a list item is about: two items of a list with the
// same identity cannot both hold. "" means the item stands for itself alone.
func identity(field string, n *yaml.Node) string {
	key := map[string]string{"files": "path", "users": "name", "health.checks": "name", "driver.accept": "rule",
		"firmware.require": "component", "gpu.mig.layouts": "name", "gpu.sharing.resources": "name", "egress.allow": "name"}[field]
	switch {
	case key != "" && n.Kind == yaml.MappingNode:
		if v := lookup(n, key); v != nil && v.Kind == yaml.ScalarNode {
			return v.Value
		}
	case n.Kind == yaml.ScalarNode && (field == "packages" || field == "firmware.packages"):
		name, _, _ := strings.Cut(n.Value, "=")
		return name
	case n.Kind == yaml.ScalarNode:
		return n.Value
	}
	return ""
}

// index returns where the pair of key starts in a mapping, or -1.
func index(n *yaml.Node, key string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

func drop(n *yaml.Node, key string) {
	if i := index(n, key); i >= 0 {
		n.Content = append(n.Content[:i:i], n.Content[i+2:]...)
	}
}
