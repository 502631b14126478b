#!/bin/sh
# Builds an image for arm64 nodes on this host, boots it in QEMU, and compares
# what its TPM shows with what was predicted. Packages and results stay in
# .cache, the image in out/arm64.
set -eu
cd "$(dirname "$0")/.."
out=out/arm64
rm -rf "$out"
mkdir -p "$out" .cache/locks
bin/imgbuild keygen --out "$out/keys"
bin/pxeserver init --dir "$out/server" --address 10.77.0.1 --dhcp off
bin/imgbuild lock recipes/rack-base-arm64.yaml --out .cache/locks/rack-base-arm64.lock.json --store .cache/store
bin/imgbuild build recipes/rack-base-arm64.yaml --lock .cache/locks/rack-base-arm64.lock.json --store .cache/store \
    --key "$out/keys/image.key" --server-ca "$out/server/ca.pem" --out "$out/image"
bin/imgbuild run "$out/image" --attest --accel tcg,thread=multi --timeout 30m
