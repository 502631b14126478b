package server

import (
	"crypto/sha256"
	"crypto/x509"
	"sync"
	"time"
)

// certs remembers whose client certificates were found to be good: checking
// a signature at each heartbeat costs more than all the rest of it. The zero
// value is empty.
type certs struct {
	mu sync.RWMutex
	of map[[sha256.Size]byte]certOwner // by SHA-256 of the certificate
}

type certOwner struct {
	node, ekHash string
	until        time.Time
}

// maxCerts bounds the memory; it is far above the number of nodes.
const maxCerts = 1 << 17

// nodeOf is check, remembered until the certificate runs out.
func (ca *CA) nodeOf(c *x509.Certificate, now time.Time) (node, ekHash string, err error) {
	key := sha256.Sum256(c.Raw)
	ca.good.mu.RLock()
	o, ok := ca.good.of[key]
	ca.good.mu.RUnlock()
	if ok && !now.After(o.until) {
		return o.node, o.ekHash, nil
	}
	if node, ekHash, err = ca.check(c, now); err != nil {
		return "", "", err
	}
	ca.good.mu.Lock()
	defer ca.good.mu.Unlock()
	if ca.good.of == nil || len(ca.good.of) >= maxCerts {
		ca.good.of = map[[sha256.Size]byte]certOwner{}
	}
	ca.good.of[key] = certOwner{node, ekHash, c.NotAfter}
	return node, ekHash, nil
}
