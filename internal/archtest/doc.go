// Package archtest holds no code, only tests of the rules that
// ARCHITECTURE.md states: which way imports point, where each library lives,
// and that every package says what it is for.
package archtest
