#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# monitoring.sh promtool|prometheus-alertmanager|icinga2: prints the path of that program, with which tests check metrics, alerts, dashboard and
# silences: the one on PATH, else that of the distribution's package, unpacked into .cache. It installs nothing and needs no root. If the package
# lists are old, apt updates a copy in a separate folder.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'monitoring: %s\n' "$*" >&2; exit 1; }

place=$PWD/.cache/monitoring/${1:-}
# A package by itself is enough for programs without libraries of their own.
get=(download)
case ${1:-} in
    promtool) package=prometheus binary=$place/usr/bin/promtool ;;
    prometheus-alertmanager) package=prometheus-alertmanager binary=$place/usr/bin/prometheus-alertmanager ;;
    icinga2) package=icinga2-bin binary=$place/icinga2 get=(install --download-only --no-install-recommends -y) ;;
    *) die "give promtool, prometheus-alertmanager or icinga2" ;;
esac
if command -v "$1"; then exit; fi
if [ -x "$binary" ]; then echo "$binary"; exit; fi
command -v apt-get >/dev/null || die "$1 is not on PATH, and this machine has no apt to get it with. Install $package."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
chmod 755 "$work"
quick=(-q -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15)
quick+=(-o Debug::NoLocking=true -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)")
fresh=("${quick[@]}" -o "Dir::State::Lists=$work/lists")
if ! (cd "$work" && apt-get "${quick[@]}" "${get[@]}" "$package" >"$work/log" 2>&1); then
    apt-get "${fresh[@]}" update >>"$work/log" 2>&1 || true
    (cd "$work" && apt-get "${fresh[@]}" "${get[@]}" "$package" >>"$work/log" 2>&1) || { cat "$work/log" >&2; die "apt gives no package $package."; }
fi
rm -rf "$place"
mkdir -p "$place"
find "$work" -name '*.deb' -exec dpkg-deb -x {} "$place" \;
if [ "$1" = icinga2 ]; then
    # Started with the libraries that came with it, which also works where they are not installed, and after this folder has moved.
    libraries=$(cd "$place" && dirname "$(find usr/lib -path '*/icinga2/sbin' -type d)" | xargs dirname)
    cat >"$binary" <<EOF
#!/bin/sh
place=\$(cd "\$(dirname "\$0")" && pwd)
LD_LIBRARY_PATH=\$place/$libraries exec "\$place/$libraries/icinga2/sbin/icinga2" "\$@" --include "\$place/usr/share/icinga2/include"
EOF
    chmod 755 "$binary"
fi
printf 'monitoring: unpacked the package %s into %s\n' "$package" ".cache/monitoring/$1" >&2
echo "$binary"
