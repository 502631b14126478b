// Package crashtest proves slot transitions against power cuts. It takes the
// writes that a transition made to a block device, in order and with the
// flushes between them, builds every state in which a cut can leave the disk
// (each prefix, and of what was not flushed every subset, up to a bound), and
// asks of each whether the node still comes up and can go on. Only tests
// import it.
//
// A sector (512 bytes) is taken to be written whole or not at all, and a
// flush to put all that came before it on the medium; everything else is left
// to the worst case.
package crashtest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
)

// Sector is the unit that is written whole or not at all.
const Sector = 512

// Op is one write to a device, or a flush (no data).
type Op struct {
	Offset int64
	Data   []byte // whole sectors; nil for a flush
}

// Device is a disk in memory that records what is done to it.
type Device struct {
	Bytes []byte
	Ops   []Op
}

// ReadAt implements io.ReaderAt.
func (d *Device) ReadAt(b []byte, off int64) (int, error) {
	return bytes.NewReader(d.Bytes).ReadAt(b, off)
}

// WriteAt implements io.WriterAt; it records whole sectors.
func (d *Device) WriteAt(b []byte, off int64) (int, error) {
	if off < 0 || off+int64(len(b)) > int64(len(d.Bytes)) {
		return 0, fmt.Errorf("write of %d bytes at %d: device has %d", len(b), off, len(d.Bytes))
	}
	copy(d.Bytes[off:], b)
	first, end := off/Sector*Sector, (off+int64(len(b))+Sector-1)/Sector*Sector
	d.Ops = append(d.Ops, Op{first, bytes.Clone(d.Bytes[first:end])})
	return len(b), nil
}

// Sync records a flush.
func (d *Device) Sync() error {
	d.Ops = append(d.Ops, Op{})
	return nil
}

// Log is what was recorded: the disk before, and the operations.
type Log struct {
	Base io.ReaderAt
	Ops  []Op
}

// State is a disk as a power cut left it.
type State struct {
	base    io.ReaderAt
	sectors map[int64][]byte // by offset
}

// ReadAt implements io.ReaderAt.
func (s *State) ReadAt(b []byte, off int64) (int, error) {
	n, err := s.base.ReadAt(b, off)
	for at := off / Sector * Sector; at < off+int64(n); at += Sector {
		if data, ok := s.sectors[at]; ok {
			if at < off {
				copy(b[:n], data[off-at:])
			} else {
				copy(b[at-off:n], data)
			}
		}
	}
	return n, err
}

// WriteAt implements io.WriterAt on a copy: the recorded disk stays.
func (s *State) WriteAt(b []byte, off int64) (int, error) {
	for i := range b {
		at := (off + int64(i)) / Sector * Sector
		old := make([]byte, Sector)
		if _, err := s.ReadAt(old, at); err != nil && !errors.Is(err, io.EOF) {
			return i, err
		}
		old[off+int64(i)-at] = b[i]
		s.sectors[at] = old
	}
	return len(b), nil
}

// Sync implements fatdir.Device.
func (s *State) Sync() error { return nil }

// Bytes returns the first n bytes of the disk.
func (s *State) Bytes(n int64) ([]byte, error) {
	return io.ReadAll(io.NewSectionReader(s, 0, n))
}

// Bounds limit the enumeration.
type Bounds struct {
	AllSubsets int // up to so many unflushed sectors, every subset is tried
	Random     int // beyond that, so many random subsets, besides all prefixes and all-but-one
}

type sectorWrite struct {
	at   int64
	data []byte
}

// States calls visit for every state a cut can leave, with a description of
// where it was cut. Writes that change nothing are left out: they make no
// state of their own. It stops at the first error.
func (l Log) States(b Bounds, visit func(where string, s *State) error) error {
	durable, latest := map[int64][]byte{}, &State{base: l.Base, sectors: map[int64][]byte{}}
	var window []sectorWrite
	for i := 0; i <= len(l.Ops); i++ {
		if i < len(l.Ops) && l.Ops[i].Data != nil {
			op := l.Ops[i]
			for at := 0; at < len(op.Data); at += Sector {
				w := sectorWrite{op.Offset + int64(at), op.Data[at : at+Sector]}
				if latest.changes(w) {
					window = append(window, w)
				}
			}
			continue
		}
		if len(window) > 0 || i == len(l.Ops) {
			if err := l.window(b, i, durable, window, visit); err != nil {
				return err
			}
		}
		for _, w := range window {
			durable[w.at] = w.data
		}
		window = nil
	}
	return nil
}

// changes applies a write, and reports whether it made a difference.
func (s *State) changes(w sectorWrite) bool {
	old := make([]byte, Sector)
	if _, err := s.ReadAt(old, w.at); err == nil && bytes.Equal(old, w.data) {
		return false
	}
	s.sectors[w.at] = w.data
	return true
}

// window visits the states of one stretch between two flushes.
func (l Log) window(b Bounds, index int, durable map[int64][]byte, window []sectorWrite, visit func(string, *State) error) error {
	try := func(kind string, chosen func(i int) bool) error {
		s := &State{base: l.Base, sectors: make(map[int64][]byte, len(durable)+len(window))}
		for at, data := range durable {
			s.sectors[at] = data
		}
		for i, w := range window {
			if chosen(i) {
				s.sectors[w.at] = w.data
			}
		}
		return visit(fmt.Sprintf("before operation %d of %d, %s of %d unflushed sectors", index, len(l.Ops), kind, len(window)), s)
	}
	if len(window) <= b.AllSubsets {
		for mask := range 1 << len(window) {
			if err := try(fmt.Sprintf("subset %b", mask), func(i int) bool { return mask>>i&1 == 1 }); err != nil {
				return err
			}
		}
		return nil
	}
	for n := range len(window) + 1 {
		if err := try(fmt.Sprintf("the first %d", n), func(i int) bool { return i < n }); err != nil {
			return err
		}
		if err := try(fmt.Sprintf("all but number %d", n), func(i int) bool { return i != n }); err != nil {
			return err
		}
	}
	rnd := rand.New(rand.NewPCG(uint64(index), uint64(len(window))))
	for n := range b.Random {
		density := rnd.IntN(100)
		if err := try(fmt.Sprintf("random subset %d", n), func(int) bool { return rnd.IntN(100) < density }); err != nil {
			return err
		}
	}
	return nil
}

// blklogwritesMagic is the first word of a log of QEMU's blklogwrites driver,
// which has the format of Linux' dm-log-writes
// (Documentation/admin-guide/device-mapper/log-writes.rst).
const blklogwritesMagic = 0x6a736677736872

// ReadLog reads a log of QEMU's blklogwrites block driver: a superblock, then
// for each request one sector that describes it and its data. All numbers are
// little-endian. Flushes that follow each other are one. An empty file is an
// empty log.
func ReadLog(r io.ReaderAt) ([]Op, error) {
	const flagFlush, flagFUA, flagDiscard = 1, 2, 4
	head := make([]byte, 28)
	if n, err := r.ReadAt(head, 0); n == 0 && errors.Is(err, io.EOF) {
		return nil, nil // nothing was written
	} else if err != nil {
		return nil, fmt.Errorf("write log: %w", err)
	}
	if binary.LittleEndian.Uint64(head) != blklogwritesMagic || binary.LittleEndian.Uint64(head[8:]) != 1 {
		return nil, errors.New("write log: not a version 1 dm-log-writes log")
	}
	entries, sector := binary.LittleEndian.Uint64(head[16:]), int64(binary.LittleEndian.Uint32(head[24:]))
	if sector != Sector {
		return nil, fmt.Errorf("write log: sectors of %d bytes", sector)
	}
	var ops []Op
	at := sector
	for i := range entries {
		e := make([]byte, 32)
		if _, err := r.ReadAt(e, at); err != nil {
			return nil, fmt.Errorf("write log: entry %d of %d: %w", i, entries, err)
		}
		at += sector
		start, count, flags := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[8:]), binary.LittleEndian.Uint64(e[16:])
		if flags&flagFlush != 0 && (len(ops) == 0 || ops[len(ops)-1].Data != nil) {
			ops = append(ops, Op{})
		}
		if count > 0 && flags&flagDiscard == 0 {
			data := make([]byte, int64(count)*sector)
			if _, err := r.ReadAt(data, at); err != nil {
				return nil, fmt.Errorf("write log: data of entry %d: %w", i, err)
			}
			at += int64(len(data))
			ops = append(ops, Op{int64(start) * sector, data})
		}
		if flags&flagFUA != 0 {
			ops = append(ops, Op{}) // stronger than FUA, which orders one write only: see docs/slots.md
		}
	}
	return ops, nil
}
