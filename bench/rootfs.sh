#!/bin/bash
# How fast is a root file system made from packages that are at hand? imgbuild
# makes the whole image (verity, UKIs and SBOM included); the peers only make
# the root: mmdebstrap of the very same .deb files, then mksquashfs with the
# same settings, and mkfs.erofs. Then: nothing changed, and a sysctl and a
# health check changed. Needs root, mmdebstrap, dpkg-dev, squashfs-tools,
# erofs-utils, jq, GNU time, and 3 GB in TMPDIR.
#
#   bench/rootfs.sh RECIPE LOCK STORE   # `imgbuild lock` has filled the store
set -euo pipefail
recipe=$(realpath "${1:?a recipe}") lock=$(realpath "${2:?its lock}") store=$(realpath "${3:?a store}")
cd "$(dirname "$0")/.."
w=$(mktemp -d)
trap 'rm -rf "$w"' EXIT
chmod 755 "$w"
export CGO_ENABLED=0
go build -trimpath -o "$w/" ./cmd/imgbuild ./cmd/nodeagent

# measure NAME CMD…: wall seconds, CPU seconds and KiB to $w/NAME
measure() {
	local name=$1
	shift
	/usr/bin/time -o "$w/$name" -f '%e %U %S %M' "$@" >"$w/$name.log" 2>&1 || { tail -5 "$w/$name.log" >&2; exit 1; }
}

# The same packages: as an archive for mmdebstrap, and alone in a store.
suite=$(jq -r '.indexes[0].suite' "$lock") arch=$(jq -r .architecture "$lock")
list=$w/repo/dists/$suite/main/binary-$arch
mkdir -p "$list" "$w/repo/pool" "$w/store/sha256"
jq -r '(.packages + .tools)[].sha256' "$lock" | sort -u | while read -r sum; do
	mkdir -p "$w/store/sha256/${sum:0:2}"
	cp "$store/sha256/${sum:0:2}/$sum" "$w/store/sha256/${sum:0:2}/$sum"
done
jq -r '.packages[].sha256' "$lock" | while read -r sum; do
	ln "$w/store/sha256/${sum:0:2}/$sum" "$w/repo/pool/$sum.deb"
done
(cd "$w/repo" && dpkg-scanpackages -m pool 2>/dev/null >"$list/Packages")
(
	cd "$w/repo/dists/$suite"
	printf 'Suite: %s\nCodename: %s\nComponents: main\nArchitectures: %s\nSHA256:\n' "$suite" "$suite" "$arch"
	printf ' %s %s main/binary-%s/Packages\n' "$(sha256sum <"main/binary-$arch/Packages" | cut -d' ' -f1)" \
		"$(stat -c %s "main/binary-$arch/Packages")" "$arch"
) >"$w/Release"
mv "$w/Release" "$w/repo/dists/$suite/Release"
names=$(jq -r '[.packages[].name] | join(",")' "$lock")

"$w/imgbuild" keygen --out "$w/keys" >/dev/null 2>&1
mkdir "$w/recipes"
cp -r "$(dirname "$recipe")"/. "$w/recipes/"
copy=$w/recipes/$(basename "$recipe")
build=("$w/imgbuild" build "$copy" --lock "$lock" --store "$w/store" --offline --key "$w/keys/image.key" --progress plain)
measure cold "${build[@]}" --out "$w/image"
measure same "${build[@]}" --out "$w/image"
sed -i 's/kernel.panic: "10"/kernel.panic: "11"/; s/soak: 5s/soak: 6s/' "$w"/recipes/*.yaml
measure small "${build[@]}" --out "$w/image"
measure anew "${build[@]}" --out "$w/image-anew" --no-cache
[ "$(tail -1 "$w/small.log")" = "$(tail -1 "$w/anew.log")" ] || { echo "an image built upon another is not that made anew" >&2; exit 1; }

measure mmdebstrap mmdebstrap --mode=root --variant=essential --architectures="$arch" --include="$names" \
	--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr --aptopt='APT::Install-Recommends "false"' "$suite" "$w/tree" "deb [trusted=yes] copy:$w/repo $suite main"
measure mksquashfs mksquashfs "$w/tree" "$w/root.squashfs" -quiet -no-progress -comp zstd -Xcompression-level 9 -b 256K
measure erofs mkfs.erofs -zlz4hc,9 "$w/root.erofs" "$w/tree"

for name in cold same small anew mmdebstrap mksquashfs erofs; do
	read -r wall user sys kib <"$w/$name"
	echo "$name $wall $user $sys $kib"
done | awk '
	{ wall[$1] = $2; cpu[$1] = $3 + $4; printf "%-11s %7.2f s  %7.2f s of CPU  %5d MiB\n", $1, $2, $3 + $4, $5 / 1024 }
	function ratio(what, a, b, ca, cb) { printf "%-46s %.2f of the wall time, %.2f of the CPU time\n", what, a / b, ca / cb }
	END {
		ratio("cold image / mmdebstrap + mksquashfs", wall["cold"], wall["mmdebstrap"] + wall["mksquashfs"], cpu["cold"], cpu["mmdebstrap"] + cpu["mksquashfs"])
		ratio("cold image / mmdebstrap + mkfs.erofs", wall["cold"], wall["mmdebstrap"] + wall["erofs"], cpu["cold"], cpu["mmdebstrap"] + cpu["erofs"])
		ratio("small change / cold image", wall["small"], wall["cold"], cpu["small"], cpu["cold"])
	}'
