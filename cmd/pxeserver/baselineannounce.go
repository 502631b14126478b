package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
)

// announceOptions are the flags of baseline announce.
type announceOptions struct {
	req      api.AnnounceRequest
	log, dbx string
	pcrs     []string
}

func newBaselineAnnounceCommand(g *globals) *cobra.Command {
	var o announceOptions
	cmd := &cobra.Command{
		Use: "announce", Short: "Approve firmware that nodes are going to have",
		Long: `Approves a set of firmware measurements before any node shows it, so that a planned update
is no outage where attestation.baseline is "enforce". It begins with one of

  --log FILE   the event log of one machine that was updated (its
               /sys/kernel/security/tpm0/binary_bios_measurements)
  --like ID    another baseline

and says what will be different:

  --dbx FILE   what the variable dbx holds after the update, whole: a copy of
               /sys/firmware/efi/efivars/dbx-d719b2cb-3d3a-4596-a3bc-dad00e67656f of one updated machine,
               or the signature lists. PCR 7 is computed from it.
  --pcr N=HEX  a value that the maker of the firmware published
  --bios, --vendor, --product
               the model, as "node show" prints it; what is not given is as in --like

Nothing is sent to nodes. Forget the old set when all of them are updated.
` + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd, g) },
	}
	f := cmd.Flags()
	f.StringVar(&o.req.Like, "like", "", "baseline to begin with")
	f.StringVar(&o.log, "log", "", "event log to begin with")
	f.StringVar(&o.dbx, "dbx", "", "contents of the variable dbx after the update")
	f.StringArrayVar(&o.pcrs, "pcr", nil, "value of PCR 0, 2, 3 or 7 after the update, as N=HEX; may be repeated")
	f.StringVar(&o.req.Model.Vendor, "vendor", "", "vendor of the model")
	f.StringVar(&o.req.Model.Product, "product", "", "product name of the model")
	f.StringVar(&o.req.Model.BIOSVersion, "bios", "", "BIOS version after the update")
	f.StringVar(&o.req.Reason, "reason", "", "why, for the event log")
	return cmd
}

func (o *announceOptions) run(cmd *cobra.Command, g *globals) error {
	if (o.req.Like == "") == (o.log == "") && len(o.pcrs) == 0 {
		return cli.Usagef(cmd, "begin with one of --log and --like")
	}
	for _, x := range []struct {
		file string
		to   *[]byte
	}{{o.log, &o.req.EventLog}, {o.dbx, &o.req.DBX}} {
		if x.file == "" {
			continue
		}
		b, err := os.ReadFile(x.file)
		if err != nil {
			return err
		}
		if len(b) == 0 {
			return fmt.Errorf("%s is empty", x.file)
		}
		*x.to = b
	}
	o.req.PCRs = map[int]string{}
	for _, s := range o.pcrs {
		n, v, _ := strings.Cut(s, "=")
		p, err := strconv.Atoi(n)
		if err != nil || v == "" {
			return cli.Usagef(cmd, "--pcr %q: want N=HEX", s)
		}
		o.req.PCRs[p] = v
	}
	c, err := g.client()
	if err != nil {
		return err
	}
	b, err := c.AnnounceBaseline(cmd.Context(), o.req)
	if err != nil {
		return err
	}
	return g.done(cmd, b, nil, "baseline %s announced for %s", b.ID, b.Model)
}
