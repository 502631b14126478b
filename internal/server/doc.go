// Package server answers the node API and the operator API of internal/api,
// and decides what a machine may boot from the network (Policy).
//
// Parties and what they prove:
//
//	node      a TPM: enrol -> challenge -> activate gives it a client
//	          certificate that lasts a day and names node and TPM; every later
//	          call is checked against the fleet state, so that removing a node
//	          or clearing its TPM works at once
//	operator  a bearer token with a role
//	image     a signature by a configured key, checked when it is published
//	          (and again by the node)
//
// The server opens no TPM. It keeps nothing in memory that matters: sessions
// and nonces are single-use tickets in the store, which expire by the
// server's clock.
package server
