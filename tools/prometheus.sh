#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# prometheus.sh promtool|prometheus-alertmanager: prints the path of that program, with which tests check metrics, alerts, dashboard and silences:
# the one on PATH, else that of the distribution's package, unpacked into .cache. It installs nothing and needs no root. If the package lists are
# old, apt updates a copy in a separate folder.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'prometheus: %s\n' "$*" >&2; exit 1; }

case ${1:-} in
    promtool) package=prometheus files=(./usr/bin/promtool) ;;
    # It reads a template below /usr/share, where a test mounts the unpacked folder.
    prometheus-alertmanager) package=prometheus-alertmanager files=(./usr/bin/prometheus-alertmanager ./usr/share/prometheus) ;;
    *) die "give promtool or prometheus-alertmanager" ;;
esac
if command -v "$1"; then exit; fi
binary=$PWD/.cache/prometheus/usr/bin/$1
if [ -x "$binary" ]; then echo "$binary"; exit; fi
command -v apt-get >/dev/null || die "$1 is not on PATH, and this machine has no apt to get it with. Install $package."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" .cache/prometheus
chmod 755 "$work"
quick=(-q -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15)
fresh=("${quick[@]}" -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)")
if ! (cd "$work" && apt-get "${quick[@]}" download "$package" >"$work/log" 2>&1); then
    apt-get "${fresh[@]}" update >>"$work/log" 2>&1 || true
    (cd "$work" && apt-get "${fresh[@]}" download "$package" >>"$work/log" 2>&1) || { cat "$work/log" >&2; die "apt gives no package $package."; }
fi
dpkg-deb --fsys-tarfile "$work/${package}"_*.deb | tar -x -C .cache/prometheus "${files[@]}"
printf 'prometheus: unpacked %s of the package %s into .cache/prometheus\n' "$1" "$package" >&2
echo "$binary"
