// Package node is nodeagent as a service of the booted system: it opens a
// session with the server as its TPM, attests the boot, runs the image's
// health checks, reports, and does what Decide says.
//
// Decide is pure and is where to look first. Everything else gathers the
// facts for it or carries its action out.
package node
