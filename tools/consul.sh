#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Prints the path of a Consul binary: the one on PATH, else that of the distribution's package, unpacked into .cache.
# It installs nothing, adds no apt source and needs no root: apt runs in separate folders, with the mirror and the keys of this machine.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'consul: %s\n' "$*" >&2; exit 1; }

if command -v consul; then exit; fi
unpacked=$PWD/.cache/consul
binary=$unpacked/usr/bin/consul
if [ -x "$binary" ]; then echo "$binary"; exit; fi

command -v apt-get >/dev/null || die "not found on PATH, and this machine has no apt to get it with. Install Consul 1.8 or later."
# shellcheck source=/dev/null
. /etc/os-release
# Debian bullseye and Ubuntu jammy are the last releases with a Consul package. It also runs on newer releases.
case ${ID:-} in
    ubuntu) suites="${VERSION_CODENAME:-} jammy focal" component=universe keyring=ubuntu-archive-keyring.gpg ;;
    *) suites="${VERSION_CODENAME:-} bullseye" component=main keyring=debian-archive-keyring.gpg ;;
esac
mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
    awk -v suite="${VERSION_CODENAME:-}" '$2 == suite { print $1; exit }')
[ -n "$mirror" ] || die "not found on PATH, and apt knows no mirror of ${PRETTY_NAME:-this distribution}. Install Consul 1.8 or later."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$unpacked"
chmod 755 "$work"
apt_get() {
    apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" "$@"
}
for suite in $suites; do
    echo "deb [signed-by=/usr/share/keyrings/$keyring] $mirror $suite $component" >"$work/sources.list"
    apt_get update >"$work/log" 2>&1 || true
    if (cd "$work" && apt_get download consul >>"$work/log" 2>&1); then
        dpkg-deb -x "$work"/consul_*.deb "$unpacked"
        printf 'consul: unpacked the package of %s into .cache/consul\n' "$suite" >&2
        echo "$binary"
        exit
    fi
done
cat "$work/log" >&2
die "not found on PATH, and none of the suites ($suites) at $mirror gave it. Install Consul 1.8 or later."
