package api

import (
	"crypto/sha256"
	"encoding/hex"
)

// LogHash names an event log: SHA-256 in hex. It is "" for an empty log.
func LogHash(log []byte) string {
	if len(log) == 0 {
		return ""
	}
	sum := sha256.Sum256(log)
	return hex.EncodeToString(sum[:])
}
