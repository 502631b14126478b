// Package recovery decides what is done, by itself, about nodes that fell
// silent or fail their checks: a ladder of ever stronger steps, held back by
// limits. It is pure: the fleet, a clock and what was done before go in; acts,
// notes and the new state come out (Decide). internal/server carries them out.
//
// What it never does:
//
//   - touch a node that is not approved: a human's cordon stays, a quarantine
//     is lifted by a human only
//   - touch a node that a rollout moves, or one on its way to what was asked
//   - answer heat or power with anything but a word
//   - answer broken hardware with another image
//   - act on nodes that fell silent together (a storm): that is a network or a
//     power feed, not nodes
package recovery
