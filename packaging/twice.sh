#!/bin/sh
# Makes the release twice, in another folder and with another umask and time
# zone, and compares; then tests the packages against ones of an older
# version number. As root.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packaging/release.sh >/dev/null
git clone -q . "$work/again"
(cd "$work/again" && umask 077 && TZ=Asia/Tokyo LC_ALL=C packaging/release.sh >/dev/null)
cmp dist/SHA256SUMS "$work/again/dist/SHA256SUMS" || { echo "the release is not reproducible" >&2; exit 1; }
echo "release: the same bytes twice"
mkdir "$work/old"
SOURCE_DATE_EPOCH=1 packaging/build-debs.sh 0.0.0~old "$(dpkg --print-architecture)" dist >/dev/null
mv dist/*_0.0.0~old_* "$work/old/"
packaging/test-debs.sh "$work/old" dist
