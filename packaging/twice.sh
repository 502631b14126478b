#!/bin/sh
# Makes the release twice, in another folder and with another umask and time
# zone, and compares; then tests the packages against ones of an older
# version number. As root.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
commit=$(git rev-parse HEAD)
copy() { git clone -q . "$work/$1" && git -C "$work/$1" checkout -q "$commit"; }
copy one
(cd "$work/one" && packaging/release.sh >/dev/null 2>&1)
copy another
(cd "$work/another" && umask 077 && TZ=Asia/Tokyo LC_ALL=C packaging/release.sh >/dev/null 2>&1)
if ! diff "$work/one/dist/SHA256SUMS" "$work/another/dist/SHA256SUMS"; then
    echo "the release is not reproducible" >&2
    exit 1
fi
echo "release: the same bytes twice"
mkdir "$work/old"
(cd "$work/one" && SOURCE_DATE_EPOCH=1 packaging/build-debs.sh 0.0.0~old "$(dpkg --print-architecture)" dist >/dev/null &&
    mv dist/*_0.0.0~old_* "$work/old/")
packaging/test-debs.sh "$work/old" "$work/one/dist"
