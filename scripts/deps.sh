#!/bin/sh
# Installs what Turnout needs to be built, tested and demonstrated on
# Debian 12 or newer. Run as root. What is there already is left alone.
# Arguments are more packages, for what is not done every day.
set -eu

packages="
ca-certificates git make curl jq openssl
qemu-system-x86 qemu-utils ovmf swtpm swtpm-tools
iproute2 nftables udev kmod mount util-linux fdisk gdisk dosfstools mtools e2fsprogs
squashfs-tools xz-utils zstd cpio binutils
cryptsetup-bin systemd-boot-efi tpm2-tools sbsigntool
apt dpkg debian-archive-keyring gpg gpgv gnupg dnsmasq-base busybox-static
chromium chromium-driver
qemu-system-arm qemu-efi-aarch64 tcpdump isc-dhcp-relay ipxe
postgresql nginx
"

say() { printf 'deps: %s\n' "$*"; }

missing=""
for p in $packages "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing="$missing $p"
done

updated=""
update() {
    [ -n "$updated" ] || apt-get update -q
    updated=yes
}

if [ -n "$missing" ]; then
    [ "$(id -u)" = 0 ] || { say "as root, please: apt-get install$missing" >&2; exit 1; }
    say "installing$missing"
    update
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
fi

# Any Go from 1.21 on fetches the toolchain that go.mod asks for by itself.
go_is_new_enough() {
    command -v go >/dev/null 2>&1 || return 1
    minor=$(GOTOOLCHAIN=local go env GOVERSION | sed -n 's/^go1\.\([0-9]*\).*/\1/p')
    [ -n "$minor" ] && [ "$minor" -ge 21 ]
}
if ! go_is_new_enough; then
    update
    candidate=$(apt-cache policy golang-go | sed -n 's/.*Candidate: *[0-9]*:*1\.\([0-9]*\).*/\1/p')
    if [ -n "$candidate" ] && [ "$candidate" -ge 21 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends golang-go
    else
        say "this release's Go is too old; taking it from backports"
        codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: '"$codename" 2>/dev/null | head -n 1)
        echo "deb ${mirror:-http://deb.debian.org/debian} $codename-backports main" >/etc/apt/sources.list.d/turnout-backports.list
        apt-get update -q
        DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends -t "$codename-backports" golang-go
    fi
fi
go_is_new_enough || { say "Go 1.21 or newer is needed: see https://go.dev/dl" >&2; exit 1; }
