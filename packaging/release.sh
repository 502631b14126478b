#!/bin/sh
# Makes a release in dist/: programs and Debian packages for amd64 and arm64,
# the bill of materials of the Go modules in them, SHA256SUMS, and with
# RELEASE_KEY (ed25519, PEM, such as `imgbuild keygen` makes) its signature.
# The same commit gives the same bytes, but for the signature.
set -eu
cd "$(dirname "$0")/.."
dist=dist
version=$(scripts/version.sh)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH CGO_ENABLED=0

rm -rf "$dist"
for arch in amd64 arm64; do
    GOARCH=$arch go build -trimpath -buildvcs=false \
        -ldflags "-s -w -buildid= -X github.com/turnout-project/turnout/internal/buildinfo.version=$version" \
        -o "$dist/bin-$arch/" ./cmd/imgbuild ./cmd/pxeserver ./cmd/nodeagent
done
for arch in amd64 arm64; do
    packaging/build-debs.sh "$version" "$arch" "$dist"
    tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" --mode=u+rwX,go+rX,go-w \
        --transform "s,^,turnout-$version/," -C "$dist/bin-$arch" -cf - imgbuild pxeserver nodeagent |
        xz -9 -T1 >"$dist/turnout-$version-linux-$arch.tar.xz"
done
go version -m "$dist"/bin-amd64/* | packaging/modules-sbom.sh "$version" >"$dist/turnout-$version.spdx"
(cd "$dist" && find . -maxdepth 1 -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum) >SHA256SUMS.new
mv SHA256SUMS.new "$dist/SHA256SUMS"
if [ -n "${RELEASE_KEY:-}" ]; then
    openssl pkeyutl -sign -rawin -inkey "$RELEASE_KEY" -in "$dist/SHA256SUMS" -out "$dist/SHA256SUMS.sig"
else
    echo "release: no RELEASE_KEY, so SHA256SUMS is not signed" >&2
fi
ls -l "$dist"
