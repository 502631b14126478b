#!/bin/sh
# Builds the Debian packages of one architecture into dist/:
#   packaging/build-debs.sh VERSION ARCH DIST
# The programs are in DIST/bin-ARCH; those of this machine's architecture in
# DIST/bin-HOST write manual pages and completions. The same commit gives the
# same bytes: SOURCE_DATE_EPOCH is the time of every file.
set -eu
cd "$(dirname "$0")/.."
version=$1 arch=$2 dist=$3
host=$(dpkg --print-architecture)
: "${SOURCE_DATE_EPOCH:?the time of the files, in seconds}"
export SOURCE_DATE_EPOCH
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# documents PROGRAM ROOT: its manual pages and completions.
documents() {
    run=$dist/bin-$host/$1
    mkdir -p "$2/usr/share/man/man1" "$2/usr/share/bash-completion/completions" \
        "$2/usr/share/zsh/vendor-completions" "$2/usr/share/fish/vendor_completions.d"
    "$run" man --dir "$2/usr/share/man/man1"
    gzip -9n "$2"/usr/share/man/man1/*.1
    "$run" completion bash >"$2/usr/share/bash-completion/completions/$1"
    "$run" completion zsh >"$2/usr/share/zsh/vendor-completions/_$1"
    "$run" completion fish >"$2/usr/share/fish/vendor_completions.d/$1.fish"
}

# deb PACKAGE ROOT: the package of what lies in ROOT.
deb() {
    doc=$2/usr/share/doc/$1
    mkdir -p "$doc" "$2/DEBIAN"
    {
        echo "Turnout, https://github.com/turnout-project/turnout"
        echo "Licence: Apache-2.0, on Debian in /usr/share/common-licenses/Apache-2.0"
    } >"$doc/copyright"
    gzip -9nc CHANGELOG.md >"$doc/changelog.gz"
    sed "s/\${version}/$version/" "packaging/deb/$1/control" >"$2/DEBIAN/control"
    size=$(du -sk --apparent-size --exclude=DEBIAN "$2" | cut -f1)
    sed -i "1a Version: $version\nArchitecture: $arch\nInstalled-Size: $size\nMaintainer: Turnout <maintainers@turnout-project.example>\nHomepage: https://github.com/turnout-project/turnout\nPriority: optional" "$2/DEBIAN/control"
    for s in preinst postinst prerm postrm; do
        if [ -e "packaging/deb/$1/$s" ]; then install -m 0755 "packaging/deb/$1/$s" "$2/DEBIAN/$s"; fi
    done
    (cd "$2" && find . -type f ! -path './DEBIAN/*' -printf '%P\n' | LC_ALL=C sort | xargs md5sum) >"$2/DEBIAN/md5sums"
    chmod 0644 "$2/DEBIAN/control" "$2/DEBIAN/md5sums"
    dpkg-deb --root-owner-group -Zxz --build "$2" "$dist/$1_${version}_$arch.deb" >/dev/null
    echo "$dist/$1_${version}_$arch.deb"
}

root=$work/server
install -D -m 0755 "$dist/bin-$arch/pxeserver" "$root/usr/bin/pxeserver"
install -D -m 0644 packaging/systemd/pxeserver.service "$root/usr/lib/systemd/system/pxeserver.service"
mkdir -p "$root/usr/share/doc/turnout-server"
cp -r docs "$root/usr/share/doc/turnout-server/"
find "$root/usr/share/doc" -name '*.go' -delete
documents pxeserver "$root"
deb turnout-server "$root"

root=$work/agent
install -D -m 0755 "$dist/bin-$arch/nodeagent" "$root/usr/lib/turnout/nodeagent"
mkdir -p "$root/usr/bin"
ln -s ../lib/turnout/nodeagent "$root/usr/bin/nodeagent"
install -D -m 0644 internal/image/turnout-nodeagent.service "$root/usr/lib/systemd/system/turnout-nodeagent.service"
documents nodeagent "$root"
deb turnout-agent "$root"

root=$work/builder
install -D -m 0755 "$dist/bin-$arch/imgbuild" "$root/usr/bin/imgbuild"
# Images of the other architecture need its agent.
for a in amd64 arm64; do
    install -D -m 0755 "$dist/bin-$a/nodeagent" "$root/usr/lib/turnout/$a/nodeagent"
done
mkdir -p "$root/usr/share/doc/turnout-builder"
cp -r recipes "$root/usr/share/doc/turnout-builder/"
documents imgbuild "$root"
deb turnout-builder "$root"
