#!/bin/sh
# Installs, uses, upgrades and purges the Debian packages in a clean Debian
# root, as root: packaging/test-debs.sh OLD-DIST NEW-DIST
# Both folders hold packages of release.sh; NEW's version is the higher one.
set -eu
old=$(realpath "$1") new=$(realpath "$2")
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
say() { printf 'test-debs: %s\n' "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }
cleanup() {
    if [ -n "${server:-}" ]; then kill "$server" 2>/dev/null || true; fi
    umount "$root/proc" "$root/dev" 2>/dev/null || true
    rm -rf --one-file-system "$root"
}
trap cleanup EXIT

say "making a clean Debian root"
mmdebstrap --quiet --variant=minbase --include=adduser,iproute2 bookworm "$root"
mount -t proc proc "$root/proc"
mount --bind /dev "$root/dev"
inside="chroot $root env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8"
in_root() { $inside "$@"; }

# A builder's dependencies are not in the root; its package is unpacked and looked at only.
install_from() {
    cp "$1"/turnout-server_*_"$arch".deb "$1"/turnout-agent_*_"$arch".deb "$root/tmp/"
    in_root sh -c 'dpkg -i /tmp/turnout-*.deb && rm /tmp/turnout-*.deb'
}

say "installing"
install_from "$old"
in_root pxeserver version
in_root nodeagent version
[ "$(stat -c %U "$root/var/lib/turnout" 2>/dev/null)" != root ] || fail "/var/lib/turnout belongs to root"
test -s "$root/usr/share/man/man1/pxeserver-rollout-start.1.gz" || fail "no manual page"
grep -q pxeserver "$root/usr/share/bash-completion/completions/pxeserver" || fail "no completion"

say "making a server"
in_root pxeserver init --dir /etc/turnout --address 127.0.0.1 --dhcp off --listen 127.0.0.1:18443 --heartbeat 1s
sed -i 's/tftp: 0 /tftp: -1 /; s/http_boot: 0 /http_boot: -1 /' "$root/etc/turnout/pxeserver.yaml"
test -e "$root/var/lib/turnout/ca.key" || fail "the CA's key is not in /var/lib/turnout"

# serve runs it as the unit does, as its user.
serve() {
    $inside setpriv --reuid=turnout --regid=turnout --clear-groups pxeserver serve --config /etc/turnout/pxeserver.yaml >>"$root/tmp/log" 2>&1 &
    server=$!
    for _ in $(seq 100); do
        in_root pxeserver node list >/dev/null 2>&1 && return
        sleep 0.2
    done
    cat "$root/tmp/log"
    fail "the server does not answer"
}
stop() { kill "$server"; wait "$server" 2>/dev/null || true; server=; }

serve
in_root pxeserver node add r1-n01 --pool training --mac 52:54:00:12:34:56
in_root pxeserver doctor --wait 0 || fail "doctor"
in_root pxeserver backup /tmp/backup.tar
stop

say "upgrading: configuration and fleet stay"
sum=$(md5sum "$root/etc/turnout/pxeserver.yaml" "$root/var/lib/turnout/ca.key" | md5sum)
install_from "$new"
[ "$sum" = "$(md5sum "$root/etc/turnout/pxeserver.yaml" "$root/var/lib/turnout/ca.key" | md5sum)" ] || fail "the upgrade changed the configuration or the CA"
serve
in_root pxeserver node list | grep -q r1-n01 || fail "the node is gone"
stop

say "restoring a backup, as root, for the service's user"
in_root pxeserver restore /tmp/backup.tar --force
serve
in_root pxeserver node list | grep -q r1-n01 || fail "the node is not in the backup"
stop

say "removing: state stays; purging: nothing but what nodes need is left"
in_root dpkg -r turnout-server
test -e "$root/var/lib/turnout/fleet.db" || fail "removing took the fleet"
in_root dpkg -P turnout-server turnout-agent
for f in /etc/turnout /var/lib/turnout /usr/bin/pxeserver /usr/bin/nodeagent; do
    if [ -e "$root$f" ]; then fail "$f is left"; fi
done
in_root getent passwd turnout && fail "the user is left"
ls "$root"/var/backups/turnout-*/ca.key >/dev/null || fail "the CA's key was not set aside"

say "builder: programs, agents of both architectures, recipes"
mkdir "$root/builder"
dpkg-deb -x "$(ls "$new"/turnout-builder_*_"$arch".deb)" "$root/builder"
for f in usr/bin/imgbuild usr/lib/turnout/amd64/nodeagent usr/lib/turnout/arm64/nodeagent usr/share/doc/turnout-builder/recipes/rack-base.yaml; do
    test -s "$root/builder/$f" || fail "$f is not in the package"
done
in_root /builder/usr/bin/imgbuild check /builder/usr/share/doc/turnout-builder/recipes/rack-base.yaml
say "all well"
