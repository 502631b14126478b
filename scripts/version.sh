#!/bin/sh
# Prints the version of this tree as Debian orders it: 0.2.0 at the tag
# v0.2.0; 0.2.0+git20260102.12.1a2b3c4 twelve commits after it; "0.0.0+…"
# before the first tag.
set -eu
cd "$(dirname "$0")/.."
if d=$(git describe --tags --match 'v[0-9]*' --long 2>/dev/null); then
    hash=${d##*-g} rest=${d%-g*}
    n=${rest##*-} tag=${rest%-*} base=${tag#v}
    [ "$n" != 0 ] || { echo "$base"; exit; }
else
    base=0.0.0 n=$(git rev-list --count HEAD) hash=$(git rev-parse --short HEAD)
fi
echo "$base+git$(git log -1 --format=%cd --date=format:%Y%m%d).$n.$hash"
