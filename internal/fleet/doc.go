// Package fleet holds the words of Turnout's domain: node, slot, image,
// desired and reported state, health, verdict, rollout. It does no I/O and
// imports the standard library only; every other package may import it.
package fleet
