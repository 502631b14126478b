// Package pulse finds nodes that need a look: those that fell silent, and
// those whose numbers stand out from their peers'. It is pure: times and
// numbers in, findings out. It says nothing of what to do about them.
package pulse
