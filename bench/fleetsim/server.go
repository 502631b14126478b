package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"crypto/tls"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/postgres"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

// The images of the simulation. Nobody fetches them.
var (
	oldImage = "sha256:" + hex.EncodeToString(make([]byte, 32))
	newImage = fmt.Sprintf("sha256:%064x", 1)
	badImage = fmt.Sprintf("sha256:%064x", 2)
	dayImage = fmt.Sprintf("sha256:%064x", 3)
)

// serve is the server under test: as `pxeserver serve` puts it together, but
// for the boot services and the TPMs. It ends when ctx does, or is killed.
func serve(ctx context.Context, o options) error {
	dir, heartbeat := o.dir, o.interval
	caPEM, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return err
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return err
	}
	ca, err := server.ParseCA(caPEM, key)
	if err != nil {
		return err
	}
	lines, err := os.ReadFile(filepath.Join(dir, "tokens"))
	if err != nil {
		return err
	}
	tokens, err := server.ParseTokens(lines)
	if err != nil {
		return err
	}
	if o.profiles {
		go profiles(ctx, dir)
	}
	st, err := openStore(ctx, o)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := putImages(ctx, st); err != nil {
		return err
	}
	images, err := oci.Create(filepath.Join(dir, "images"))
	if err != nil {
		return err
	}
	if err := listBoots(ctx, st, images); err != nil {
		return err
	}
	var tpm server.TPM = fakeTPM{}
	if o.attest > 0 {
		tpm = judgingTPM{Trust: &server.Trust{}}
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	srv := server.New(server.Options{Store: st, Images: images, CA: ca, TPM: tpm, Tokens: tokens,
		Heartbeat: heartbeat, NodeCert: 24 * time.Hour, Version: "fleetsim", Log: log})
	cert, err := ca.ServerCertificate([]string{"127.0.0.1"}, time.Now())
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.serve)
	if err != nil {
		return err
	}
	go store.Lead(ctx, st, func(ctx context.Context) {
		go srv.Watch(ctx)
		(&rollout.Executor{Store: st, Log: log, Wake: srv.Wake()}).Run(ctx)
	})
	h := &http.Server{Handler: srv.Handler(), ReadHeaderTimeout: 15 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug)}
	context.AfterFunc(ctx, func() { h.Close() })
	fmt.Println("ready")
	if err := h.Serve(tls.NewListener(l, srv.TLS(cert))); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func openStore(ctx context.Context, o options) (store.Store, error) {
	if o.store != "" {
		return postgres.Open(ctx, o.store, "")
	}
	return sqlite.Open(ctx, filepath.Join(o.dir, "fleet.db"))
}

func putImages(ctx context.Context, st store.Store) error {
	return st.Update(ctx, func(tx store.Tx) error {
		for i, d := range []string{oldImage, newImage, badImage, dayImage} {
			if err := tx.PutImage(ctx, &fleet.Image{Digest: d, Name: "sim", Version: fmt.Sprint(i + 1), Published: time.Now()}); err != nil {
				return err
			}
		}
		return nil
	})
}

// fakeTPM stands for the arithmetic of TPMs on both sides: the secret of a
// challenge follows from its blob and the keys. Everything else of an
// enrolment is real.
type fakeTPM struct{}

func (fakeTPM) CheckEK(ek, _, _ []byte) (hash, trust string, err error) {
	h := sha256.Sum256(ek)
	return hex.EncodeToString(h[:]), "simulated", nil
}

func (fakeTPM) AKName(ak []byte) (string, error) { return hex.EncodeToString(ak), nil }

func (fakeTPM) MakeCredential(ek, ak []byte) (blob, enc, secret []byte, err error) {
	now := fmt.Append(nil, time.Now().UnixNano())
	return now, ek, openCredential(now, ek, ak), nil
}

func openCredential(blob, ek, ak []byte) []byte {
	h := sha256.Sum256(fmt.Appendf(nil, "%s|%s|%s", blob, ek, ak))
	return h[:]
}

// judgingTPM enrols as fakeTPM does, and judges evidence as a real server.
type judgingTPM struct {
	*server.Trust
	fakeTPM
}

func (t judgingTPM) CheckEK(ek, cert, chain []byte) (hash, trust string, err error) {
	return t.fakeTPM.CheckEK(ek, cert, chain)
}

func (t judgingTPM) AKName(ak []byte) (string, error) { return t.Trust.AKName(ak) }

func (t judgingTPM) MakeCredential(ek, ak []byte) (blob, enc, secret []byte, err error) {
	return t.fakeTPM.MakeCredential(ek, ak)
}

func (t judgingTPM) Wanted() (string, []int) { return t.Trust.Wanted() }

func (t judgingTPM) Judge(e server.Evidence) (fleet.Verdict, *store.Clock) { return t.Trust.Judge(e) }

func (fakeTPM) Wanted() (string, []int) { return "sha256", []int{4, 11} }

func (fakeTPM) Judge(server.Evidence) (fleet.Verdict, *store.Clock) {
	return fleet.Verdict{Summary: "nothing is attested in this simulation"}, nil
}
