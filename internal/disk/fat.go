package disk

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/diskfs/go-diskfs/filesystem/fat12"
	"github.com/diskfs/go-diskfs/filesystem/fat32"
)

// VolumeLabel is the FAT label of an ESP made here. Nothing looks for it.
const VolumeLabel = "TURNOUT ESP"

// fatReserved is the number of sectors go-diskfs puts before the first FAT.
const fatReserved = 32

// FAT is a FAT32 file system on a device, through go-diskfs. Paths are as in
// io/fs: relative, with slashes. Changes are on the medium when they return. It is for making images and for tests: on a
// node the kernel has the ESP mounted.
type FAT struct {
	dev          Device
	fs           *fat32.FileSystem
	size, sector int64
}

// FormatFAT makes a FAT32 of at most size bytes at offset start of dev.
func FormatFAT(dev Device, start, size int64, sectorSize int) (*FAT, error) {
	size, err := fatSize(size, sectorSize)
	if err != nil {
		return nil, err
	}
	fs, err := fat32.Create(newStorage(dev, start+size), size, start, int64(sectorSize), VolumeLabel, false)
	if err != nil {
		return nil, fmt.Errorf("formatting the ESP: %w", err)
	}
	return &FAT{dev, fs, size, int64(sectorSize)}, dev.Sync()
}

// OpenFAT opens a FAT32 of size bytes at offset start of dev.
func OpenFAT(dev Device, start, size int64, sectorSize int) (*FAT, error) {
	fs, err := fat32.Read(newStorage(dev, start+size), size, start, int64(sectorSize))
	if err != nil {
		return nil, fmt.Errorf("opening the ESP: %w", err)
	}
	return &FAT{dev, fs, size, int64(sectorSize)}, nil
}

// fatSize returns the largest size up to limit at which go-diskfs 1.9.4 makes
// a sound file system: one in which the FAT has exactly as many entries as
// there are clusters. With fewer, fsck refuses it (diskfs/go-diskfs issue
// 418, at 64 MiB and 4 GiB); with more, its allocator runs past the end of a
// full volume.
func fatSize(limit int64, sectorSize int) (int64, error) {
	const min = 34 * MiB // FAT32 has at least 65525 clusters
	s := int64(sectorSize)
	for spc := fatSectorsPerCluster(limit, s); ; {
		entriesPerSector := s / 4
		// sectors = reserved + 2 FATs + clusters, clusters = entries - 2
		fatSectors := (limit/s - fatReserved + 2*spc) / (2 + spc*entriesPerSector)
		size := s * (fatReserved + 2*fatSectors + spc*(fatSectors*entriesPerSector-2))
		if size < min || fatSectors > 0xFFFF || fatSectors*entriesPerSector-2 < 65525 {
			return 0, fmt.Errorf("a FAT32 of %d bytes with %d-byte sectors: too small or too large", limit, sectorSize)
		}
		if again := fatSectorsPerCluster(size, s); again != spc {
			spc = again
			continue
		}
		return size, nil
	}
}

// fatSectorsPerCluster is go-diskfs' choice.
func fatSectorsPerCluster(size, sector int64) int64 {
	cluster := int64(32 << 10)
	for _, c := range []struct{ size, cluster int64 }{
		{260 * MiB, 512}, {8 * GiB, 4 << 10}, {16 * GiB, 8 << 10}, {32 * GiB, 16 << 10},
	} {
		if size <= c.size {
			cluster = c.cluster
			break
		}
	}
	return max(cluster/sector, 1)
}

// WriteFiles writes files with the folders they need, in order of their
// paths.
func (f *FAT) WriteFiles(files map[string][]byte) error {
	for _, p := range slices.Sorted(maps.Keys(files)) {
		if err := f.WriteFile(p, files[p]); err != nil {
			return err
		}
	}
	return nil
}

// Mkdir makes a folder and its parents; one that exists is no error.
func (f *FAT) Mkdir(dir string) error {
	if err := f.fs.Mkdir(dir); err != nil {
		return fmt.Errorf("making folder %s: %w", dir, err)
	}
	if err := f.mendParents(); err != nil {
		return fmt.Errorf("making folder %s: %w", dir, err)
	}
	return f.dev.Sync()
}

// mendParents writes cluster 0 into ".." of the folders in the root folder,
// as the FAT specification wants it (section 6.5); go-diskfs 1.9.4 writes the
// root's cluster, which fsck objects to.
func (f *FAT) mendParents() error {
	const slot, attrDir = 32, 0x10
	cluster := func(n uint32) int64 {
		return f.fs.Start() + int64(f.fs.DataStart()) + int64(n-2)*int64(f.fs.BytesPerCluster())
	}
	root := make([]byte, f.fs.BytesPerCluster()) // first-level folders are few
	if err := readFull(f.dev, root, cluster(2)); err != nil {
		return err
	}
	for at := 0; at+slot <= len(root) && root[at] != 0; at += slot {
		e := root[at : at+slot]
		if e[0] == 0xE5 || e[11]&^0x20 != attrDir {
			continue
		}
		first := uint32(binary.LittleEndian.Uint16(e[26:])) | uint32(binary.LittleEndian.Uint16(e[20:]))<<16
		parent := cluster(first) + slot
		dots := make([]byte, slot)
		if err := readFull(f.dev, dots, parent); err != nil {
			return err
		}
		if string(dots[:2]) != ".." {
			return fmt.Errorf("folder at cluster %d has no parent entry", first)
		}
		copy(dots[20:22], []byte{0, 0})
		copy(dots[26:28], []byte{0, 0})
		if _, err := f.dev.WriteAt(dots, parent); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile writes one file, replacing an old one. The content goes out in
// one Write: go-diskfs rewrites both FATs for each.
func (f *FAT) WriteFile(p string, b []byte) error {
	if len(b) == 0 {
		return fmt.Errorf("writing %s: go-diskfs 1.9.4 cannot hold an empty file", p)
	}
	if dir := path.Dir(p); dir != "." {
		if err := f.Mkdir(dir); err != nil {
			return err
		}
	}
	w, err := f.fs.OpenFile(p, os.O_CREATE|os.O_RDWR|os.O_TRUNC)
	if err != nil {
		return fmt.Errorf("writing %s: %w", p, err)
	}
	defer w.Close()
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("writing %s: %w", p, err)
	}
	return f.dev.Sync()
}

// ReadFile returns a file's content.
func (f *FAT) ReadFile(p string) ([]byte, error) {
	size, err := f.Stat(p)
	if err != nil {
		return nil, err
	}
	r, err := f.fs.Open(p)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(io.LimitReader(r, size)) // go-diskfs would give the slack of the last cluster as well
	if err == nil && int64(len(b)) < size {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// Stat returns the size of a file, or os.ErrNotExist.
func (f *FAT) Stat(p string) (int64, error) {
	files, err := f.List(path.Dir(p))
	if err != nil {
		return 0, err
	}
	for _, x := range files {
		if strings.EqualFold(x.Name, path.Base(p)) {
			return x.SizeBytes, nil
		}
	}
	return 0, fmt.Errorf("%s: %w", p, os.ErrNotExist)
}

// FileInfo is one plain file of a folder.
type FileInfo struct {
	Name      string
	SizeBytes int64
}

// List returns the plain files of a folder in directory order; a folder that
// does not exist is empty.
func (f *FAT) List(dir string) ([]FileInfo, error) {
	at := "."
	for _, part := range strings.FieldsFunc(dir, func(r rune) bool { return r == '/' }) {
		entries, err := f.fs.ReadDir(at)
		if err != nil {
			return nil, fmt.Errorf("reading folder %s: %w", at, err)
		}
		found := false
		for _, e := range entries {
			found = found || e.IsDir() && strings.EqualFold(e.Name(), part)
		}
		if !found {
			return nil, nil
		}
		at = path.Join(at, part)
	}
	entries, err := f.fs.ReadDir(at)
	if err != nil {
		return nil, fmt.Errorf("reading folder %s: %w", dir, err)
	}
	var out []FileInfo
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			return nil, err
		}
		if fi.Mode().IsRegular() {
			out = append(out, FileInfo{e.Name(), fi.Size()})
		}
	}
	return out, nil
}

// Free returns the number of bytes in free clusters.
func (f *FAT) Free() (int64, error) {
	first := int64(fatReserved) * f.sector
	fat := make([]byte, (int64(f.fs.DataStart())-first)/2)
	if err := readFull(f.dev, fat, f.fs.Start()+first); err != nil {
		return 0, fmt.Errorf("reading the allocation table: %w", err)
	}
	free := int64(0)
	for at := 8; at < len(fat); at += 4 {
		if binary.LittleEndian.Uint32(fat[at:])&0x0FFFFFFF == 0 {
			free++
		}
	}
	return free * int64(f.fs.BytesPerCluster()), nil
}

// Rename gives a file a new name in its folder.
func (f *FAT) Rename(oldPath, newPath string) error {
	if err := f.fs.Rename(oldPath, newPath); err != nil {
		return fmt.Errorf("renaming %s to %s: %w", oldPath, newPath, err)
	}
	return f.dev.Sync()
}

// Remove deletes a file. go-diskfs 1.9.4 does not give its clusters back, so
// that is done here, after the directory entry is gone.
func (f *FAT) Remove(p string) error {
	r, err := f.fs.OpenFile(p, os.O_RDONLY)
	if err != nil {
		return fmt.Errorf("removing %s: %w", p, err)
	}
	chain, err := r.(*fat12.File).GetClusterChain()
	if err != nil {
		return fmt.Errorf("removing %s: %w", p, err)
	}
	if err := f.fs.Remove(p); err != nil {
		return fmt.Errorf("removing %s: %w", p, err)
	}
	if err := f.dev.Sync(); err != nil {
		return err
	}
	if err := f.freeClusters(chain); err != nil {
		return fmt.Errorf("removing %s: %w", p, err)
	}
	return f.dev.Sync()
}

// freeClusters zeroes entries of both allocation tables, sector by sector,
// and reads the file system anew: go-diskfs holds the tables in memory.
func (f *FAT) freeClusters(chain []uint32) error {
	first := int64(fatReserved) * f.sector
	fatBytes := (int64(f.fs.DataStart()) - first) / 2
	sectors := map[int64][]uint32{}
	for _, c := range chain {
		at := int64(c) * 4 / f.sector
		sectors[at] = append(sectors[at], c)
	}
	for _, start := range []int64{first, first + fatBytes} {
		for _, at := range slices.Sorted(maps.Keys(sectors)) {
			b, off := make([]byte, f.sector), f.fs.Start()+start+at*f.sector
			if err := readFull(f.dev, b, off); err != nil {
				return err
			}
			for _, c := range sectors[at] {
				clear(b[int64(c)*4%f.sector:][:4])
			}
			if _, err := f.dev.WriteAt(b, off); err != nil {
				return err
			}
		}
	}
	again, err := OpenFAT(f.dev, f.fs.Start(), f.size, int(f.sector))
	if err == nil {
		*f = *again
	}
	return err
}
