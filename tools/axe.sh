#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Prints the path of axe.min.js of axe-core, with which tests check that pages are accessible. npm gets it once into .cache; it installs nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

version=4.14.1
sha512=FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==

die() { printf 'axe: %s\n' "$*" >&2; exit 1; }

file=$PWD/.cache/axe-core/$version/axe.min.js
if [ -f "$file" ]; then echo "$file"; exit; fi
command -v npm >/dev/null || die "axe-core is not in .cache, and there is no npm to get it with. Install npm."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
(cd "$work" && npm pack --silent --cache "$work/npm" "axe-core@$version" >"$work/log" 2>&1) || { cat "$work/log" >&2; die "npm gives no axe-core $version."; }
found=$(openssl dgst -sha512 -binary "$work/axe-core-$version.tgz" | base64 -w0)
[ "$found" = "$sha512" ] || die "the axe-core $version that npm gave has another hash than expected: $found."
mkdir -p "$(dirname "$file")"
tar -xzf "$work/axe-core-$version.tgz" -O package/axe.min.js >"$work/axe.min.js"
mv "$work/axe.min.js" "$file"
printf 'axe: unpacked axe-core %s into .cache/axe-core\n' "$version" >&2
echo "$file"
