#!/bin/sh
# Reads `go version -m` and writes the Go modules of the programs as SPDX 2.3
# (tag:value): modules-sbom.sh VERSION <in >out
set -eu
date=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)
cat <<H
SPDXVersion: SPDX-2.3
DataLicense: CC0-1.0
SPDXID: SPDXRef-DOCUMENT
DocumentName: turnout-$1
DocumentNamespace: https://github.com/turnout-project/turnout/sbom/$1
Creator: Organization: Turnout
Created: $date

PackageName: turnout
SPDXID: SPDXRef-turnout
PackageVersion: $1
PackageDownloadLocation: NOASSERTION
PackageLicenseDeclared: Apache-2.0
Relationship: SPDXRef-DOCUMENT DESCRIBES SPDXRef-turnout
H
awk '$1 == "dep" { print $2, $3, $4 }' | LC_ALL=C sort -u | while read -r name ver sum; do
    id=SPDXRef-$(printf %s "$name-$ver" | tr -c 'A-Za-z0-9.\n' '-')
    printf '\nPackageName: %s\nSPDXID: %s\nPackageVersion: %s\nPackageDownloadLocation: NOASSERTION\nExternalRef: PACKAGE-MANAGER purl pkg:golang/%s@%s\nPackageComment: <text>go.sum %s</text>\nRelationship: SPDXRef-turnout DEPENDS_ON %s\n' \
        "$name" "$id" "$ver" "$name" "$ver" "$sum" "$id"
done
