#!/bin/bash
# How fast is an image on a slot, verification included? The peer only writes:
# `zstd -dc | dd oflag=direct` of the same root file system onto the same loop
# device, both flushed at the end. Turns are alternated; the median of each
# counts. Needs root, zstd, losetup, and three times the size in TMPDIR.
#
#   bench/install.sh ROOT.squashfs [TURNS]
#   bench/install.sh 1024 [TURNS]     # so many MiB of noise instead
#   DEVICE_MBPS=400 bench/install.sh … # the device writes and reads no faster (control group)
set -euo pipefail
what=${1:?a root file system, or MiB} turns=${2:-5}
[ -f "$what" ] && what=$(realpath "$what")
cd "$(dirname "$0")/.."
w=$(mktemp -d)
dev= group=
cleanup() {
	[ -z "$group" ] || { echo $$ >"${group%/*}/cgroup.procs"; rmdir "$group"; }
	[ -z "$dev" ] || losetup -d "$dev"
	rm -rf "$w"
}
trap cleanup EXIT
if [ -f "$what" ]; then
	cp "$what" "$w/root"
else
	head -c $((what << 20)) /dev/urandom >"$w/root"
fi
size=$(stat -c %s "$w/root")
zstd -q -3 "$w/root" -o "$w/root.zst"
fallocate -l $((size + (16 << 20))) "$w/disk"
dev=$(losetup --find --show --direct-io=on "$w/disk")
go build -o "$w/slotinstall" ./bench/slotinstall
if [ -n "${DEVICE_MBPS:-}" ]; then
	id=$(cat "/sys/class/block/${dev#/dev/}/dev") bps=$((DEVICE_MBPS * 1000000))
	if [ -f /sys/fs/cgroup/cgroup.controllers ]; then # version 2
		group=/sys/fs/cgroup/turnout-bench-$$
		mkdir "$group"
		echo "$id wbps=$bps rbps=$bps" >"$group/io.max"
	else
		group=/sys/fs/cgroup/blkio/turnout-bench-$$
		mkdir "$group"
		for way in read write; do echo "$id $bps" >"$group/blkio.throttle.${way}_bps_device"; done
	fi
	echo $$ >"$group/cgroup.procs"
fi
cat "$w/root" "$w/root.zst" >/dev/null

now() { date +%s.%N; }
blank() { dd if=/dev/zero of="$dev" bs=4M count=8 oflag=direct status=none && sync -f "$w"; }
for _ in $(seq "$turns"); do
	blank
	a=$(now)
	zstd -dc "$w/root.zst" | dd of="$dev" bs=4M iflag=fullblock oflag=direct conv=fsync status=none
	b=$(now)
	cmp -n "$size" "$dev" "$w/root"
	awk -v a="$a" -v b="$b" 'BEGIN { print b - a }' >>"$w/peer"
	blank
	"$w/slotinstall" -image "$w/root" -to "$dev" -verity "$w/tree" >"$w/json"
	cmp -n "$size" "$dev" "$w/root"
	sed 's/.*"seconds":\([0-9.]*\).*/\1/' "$w/json" >>"$w/ours"
done
median() { sort -n "$1" | awk '{v[NR]=$1} END {print v[int((NR+1)/2)]}'; }
awk -v s="$size" -v p="$(median "$w/peer")" -v o="$(median "$w/ours")" 'BEGIN {
	printf "%d MiB: zstd -dc | dd oflag=direct %.2f s (%.0f MiB/s); Turnout, read back and verified, %.2f s (%.0f MiB/s); ratio of speed %.2f\n",
		s / 2^20, p, s / 2^20 / p, o, s / 2^20 / o, p / o }'
sed 's/.*"peakKiB":\([0-9]*\).*/peak memory \1 KiB/' "$w/json"
