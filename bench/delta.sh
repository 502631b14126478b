#!/bin/bash
# What does a change of the driver cost to fetch? Two root file systems that
# differ in the driver only are packed as imgbuild packs them; then the bytes
# are counted that Turnout's installer, casync and zchunk need for the second
# where the first is there. Needs mksquashfs, casync, zchunk and about 4 GiB
# in TMPDIR; takes some minutes.
#
#   bench/delta.sh [MIB-OF-BASE [MIB-OF-DRIVER]]
set -euo pipefail
base=${1:-700} driver=${2:-60}
cd "$(dirname "$0")/.."
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT

# The base is what this machine has in /usr; the driver is code from there
# too, other code in each version, with a few bytes more.
mkdir -p "$w/old/usr/lib/driver"
find /usr/lib /usr/bin /usr/share -xdev -type f -size -40M -print0 | sort -z >"$w/files"
have=0
while IFS= read -r -d '' f; do
	size=$(stat -c %s "$f")
	[ $((have += size)) -le $((base << 20)) ] || break
	printf '%s\0' "$f"
done <"$w/files" >"$w/base"
tar -C / --null -T "$w/base" -cf - 2>/dev/null | tar -C "$w/old" -xf -
cp -a "$w/old" "$w/new"
find /usr/lib /usr/bin -xdev -type f -name '*.so*' -print0 | sort -z | xargs -0 cat 2>/dev/null | head -c $((2 * driver << 20)) >"$w/code" || true
for i in 0 1 2 3 4 5 6 7; do
	n=$(((driver << 20) / 8))
	tail -c +$((i * n + 1)) "$w/code" | head -c $n >"$w/old/usr/lib/driver/lib$i.so.1" || true
	tail -c +$((8 * n + i * n + 1)) "$w/code" | head -c $((n - 1000 * i)) | tr '\000\001' '\001\000' >"$w/new/usr/lib/driver/lib$i.so.1" || true
done
for v in old new; do
	mksquashfs "$w/$v" "$w/$v.squashfs" -noappend -no-progress -quiet -reproducible -mkfs-time 1 -all-time 1 -no-exports -comp zstd -b 256K >/dev/null
done
mksquashfs "$w/new/usr/lib/driver" "$w/driver.squashfs" -noappend -no-progress -quiet -comp zstd -b 256K >/dev/null
size() { stat -c %s "$1"; }
new=$(size "$w/new.squashfs")
echo "image $new bytes; the new driver alone, packed: $(size "$w/driver.squashfs")"
row() { awk -v n="$1" -v b="$2" -v t="$new" 'BEGIN { printf "%-36s %12d bytes  %6.2f %% of the image\n", n, b, 100 * b / t }'; }

go build -o "$w/slotinstall" ./bench/slotinstall
truncate -s $((new * 3 / 2 / 4096 * 4096)) "$w/slot"
"$w/slotinstall" -image "$w/new.squashfs" -to "$w/slot" -verity "$w/tree" -other "$w/old.squashfs" >"$w/json"
cmp -n "$new" "$w/slot" "$w/new.squashfs"
row "Turnout" "$(sed 's/.*"fetchedBytes":\([0-9]*\).*/\1/' "$w/json")"
echo "  $(cat "$w/json")"

# stores of both versions: what the second adds is fetched
casync_row() { # name, suffix of the index, what is old, what is new
	mkdir "$w/store"
	casync make --store="$w/store" "$w/old.$2" "$3" >/dev/null
	a=$(find "$w/store" -name '*.cacnk' -printf '%s\n' | awk '{s+=$1} END {print s}')
	casync make --store="$w/store" "$w/new.$2" "$4" >/dev/null
	b=$(find "$w/store" -name '*.cacnk' -printf '%s\n' | awk '{s+=$1} END {print s}')
	row "$1" $((b - a + $(size "$w/new.$2")))
	rm -rf "$w/store"
}
casync_row "casync, of the packed root" caibx "$w/old.squashfs" "$w/new.squashfs"
casync_row "casync, of the tree" caidx "$w/old" "$w/new"

zck -o "$w/old.zck" "$w/old.squashfs" && zck -o "$w/new.zck" "$w/new.squashfs"
row "zchunk, of the packed root" "$(zck_delta_size "$w/old.zck" "$w/new.zck" | sed -n 's/^Would download \([0-9]*\) of.*/\1/p')"
