#!/bin/bash
# How fast are our boot services beside dnsmasq, tftpd-hpa and nginx? Servers
# and clients are in two network namespaces of this machine; all load the same
# file from the page cache. Turns are alternated, the median of each counts;
# compare figures of one run only. Needs root, iproute2 and the peers
# (dnsmasq-base, tftpd-hpa, nginx-light); those that are missing are left out.
#
#   bench/netboot.sh [TURNS] [WHAT...]   # tftp1 tftp64 http1 http16 dhcp storm
set -euo pipefail
turns=${1:-3}
shift || true
what=${*:-tftp1 tftp64 http1 http16 dhcp storm}
cd "$(dirname "$0")/.."
w=$(mktemp -d)
chmod 755 "$w"
s=tb-server-$$ c=tb-client-$$
pid=
stop() {
	[ -z "$pid" ] || kill "$pid" 2>/dev/null || true
	[ -z "$pid" ] || wait "$pid" 2>/dev/null || true
	pid=
}
cleanup() {
	stop
	ip netns del $s 2>/dev/null || true
	ip netns del $c 2>/dev/null || true
	rm -rf "$w"
}
trap cleanup EXIT
go build -o "$w/netboot" ./bench/netboot
mkdir -p "$w/root/b/0123456789ab"
head -c $((64 << 20)) /dev/urandom >"$w/root/b/0123456789ab/installer.efi"
head -c 1000000000 /dev/urandom >"$w/root/big"
head -c $((2 << 20)) /dev/urandom >"$w/root/loader"
chmod -R a+rX "$w/root"
ip netns add $s
ip netns add $c
ip link add s0 netns $s type veth peer name c0 netns $c
ip -n $s addr add 10.78.0.1/16 dev s0
ip -n $c addr add 10.78.0.9/16 dev c0
ip -n $c route add local 10.78.16.0/20 dev lo
for n in $s:s0 $c:c0; do
	ip -n "${n%:*}" link set lo up
	ip -n "${n%:*}" link set "${n#*:}" up
done
cat >"$w/nginx.conf" <<END
worker_processes auto; daemon off; pid $w/nginx.pid; error_log $w/nginx.log; user root;
events { worker_connections 4096; }
http { access_log off; sendfile on; tcp_nopush on; server { listen 80; root $w/root; } }
END
in_s() { ip netns exec $s "$@"; }
in_c() { ip netns exec $c "$@"; }
start() { # start SERVER PORT-SELECTOR
	case $1 in
	turnout) ip netns exec $s "$w/netboot" serve -file "$w/root/b/0123456789ab/installer.efi" & ;;
	turnout-http) ip netns exec $s "$w/netboot" serve -file "$w/root/big" & ;;
	turnout-sqlite) rm -f "$w"/leases.db*; ip netns exec $s "$w/netboot" serve -leases "$w/leases.db" -file "$w/root/big" & ;;
	turnout-storm) ip netns exec $s "$w/netboot" serve -clients 2 -file "$w/root/loader" & ;;
	dnsmasq) ip netns exec $s dnsmasq -k -C /dev/null --port=0 --user=root --pid-file="$w/dm.pid" --enable-tftp --tftp-root="$w/root" --tftp-max=200 & ;;
	tftpd-hpa) ip netns exec $s in.tftpd -L -4 --user root --address 10.78.0.1:69 --secure "$w/root" & ;;
	nginx) ip netns exec $s nginx -c "$w/nginx.conf" & ;;
	dnsmasq-dhcp) rm -f "$w/dm.leases"; ip netns exec $s dnsmasq -k -C /dev/null --port=0 --user=root --pid-file="$w/dm.pid" --dhcp-leasefile="$w/dm.leases" \
		--dhcp-range=10.78.16.0,10.78.255.254,255.255.0.0 --dhcp-lease-max=60000 --quiet-dhcp --no-ping --dhcp-authoritative --dhcp-boot=x.efi & ;;
	esac
	pid=$!
	for _ in $(seq 200); do
		[ -n "$(in_s ss -Hlntu "$2")" ] && return
		sleep 0.05
	done
	echo "$1 does not start" >&2
	exit 1
}
have() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ]; }
median() { sort -n "$1" | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }
# compare WHAT UNIT OURS:... PEER...: each is SERVER, measured by measure WHAT SERVER
compare() {
	local name=$1 unit=$2
	shift 2
	for _ in $(seq "$turns"); do
		for x in "$@"; do measure "$name" "$x" >>"$w/$name.$x"; done
	done
	for x in "$@"; do
		awk -v n="$name" -v x="$x" -v a="$(median "$w/$name.$1")" -v b="$(median "$w/$name.$x")" -v u="$unit" -v all="$(sort -n "$w/$name.$x" | tr '\n' ' ')" \
			'BEGIN { printf "%-8s %-15s %10.1f %s  turnout/this %.2f  (%s)\n", n, x, b, u, a / b, all }'
	done
}
measure() {
	local file=b/0123456789ab/installer.efi
	case $1 in
	tftp1) start "$2" 'sport = :69' >&2; in_c "$w/netboot" tftp -server 10.78.0.1:69 -name $file | tail -n 1 ;;
	tftp64) start "$2" 'sport = :69' >&2; in_c "$w/netboot" tftp -server 10.78.0.1:69 -name $file -clients 64 -size $((8 << 20)) | tail -n 1 ;;
	http1 | http16)
		local path=/big
		[ "$2" = nginx ] || path=/$file
		start "$2" 'sport = :80' >&2
		in_c "$w/netboot" http -server 10.78.0.1:80 -path $path -clients "${1#http}" | tail -n 1
		;;
	dhcp) start "$2" 'sport = :67' >&2; in_c "$w/netboot" dhcp -server 10.78.0.1 -clients "$([ "$2" = dnsmasq-dhcp ] && echo 500 || echo 10000)" | tail -n 1 ;;
	esac
	stop
}
peers() { for x in "$@"; do
	case $x in tftpd-hpa) have in.tftpd && echo "$x" || true ;; dnsmasq*) have dnsmasq && echo "$x" || true ;; *) have "$x" && echo "$x" || true ;; esac
done; }
for x in $what; do
	case $x in
	tftp1 | tftp64) compare "$x" MB/s turnout $(peers dnsmasq tftpd-hpa) ;;
	http1 | http16) compare "$x" MB/s turnout-http $(peers nginx) ;;
	dhcp) compare dhcp leases/s turnout turnout-sqlite $(peers dnsmasq-dhcp) ;;
	storm)
		start turnout-storm 'sport = :69'
		in_c "$w/netboot" storm -clients 1000 -pid "$pid"
		stop
		;;
	*) echo "$x: want tftp1, tftp64, http1, http16, dhcp or storm" >&2; exit 2 ;;
	esac
done
