#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Prints the path of promtool, with which tests check metrics and alerts: the one on PATH, else that of the distribution's package prometheus,
# unpacked into .cache. It installs nothing and needs no root. If the package lists are old, apt updates a copy in a separate folder.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'promtool: %s\n' "$*" >&2; exit 1; }

if command -v promtool; then exit; fi
binary=$PWD/.cache/prometheus/usr/bin/promtool
if [ -x "$binary" ]; then echo "$binary"; exit; fi
command -v apt-get >/dev/null || die "not found on PATH, and this machine has no apt to get it with. Install the tools of Prometheus."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" .cache/prometheus
chmod 755 "$work"
quick=(-q -o Acquire::Retries=0 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15)
fresh=("${quick[@]}" -o "Dir::State::Lists=$work/lists" -o "Dir::Cache=$work/cache" -o "APT::Sandbox::User=$(id -un)")
if ! (cd "$work" && apt-get "${quick[@]}" download prometheus >"$work/log" 2>&1); then
    apt-get "${fresh[@]}" update >>"$work/log" 2>&1 || true
    (cd "$work" && apt-get "${fresh[@]}" download prometheus >>"$work/log" 2>&1) || { cat "$work/log" >&2; die "apt gives no package prometheus."; }
fi
dpkg-deb --fsys-tarfile "$work"/prometheus_*.deb | tar -x -C .cache/prometheus ./usr/bin/promtool
printf 'promtool: unpacked that of the package prometheus into .cache/prometheus\n' >&2
echo "$binary"
