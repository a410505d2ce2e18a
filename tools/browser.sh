#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Prints the path of a Chromium, with which tests open rollout reports: the one on PATH, else the distribution's package chromium. Root installs
# it if it is missing (100 MB; about a minute). Ubuntu's package only downloads a snap, so it is not used there.
set -euo pipefail

die() { printf 'browser: %s\n' "$*" >&2; exit 1; }

look() {
    local name path
    for name in chromium google-chrome google-chrome-stable chromium-browser; do
        path=$(command -v "$name") || continue
        # Wrappers that only download a snap do not print a version, nor do binaries that can't run here.
        if timeout 60 "$path" --version >/dev/null 2>&1; then echo "$path"; return; fi
    done
    return 1
}

if look; then exit; fi
command -v apt-get >/dev/null || die "no Chromium on PATH, and this machine has no apt to get it with. Install Chromium or Chrome."
[ "$(id -u)" = 0 ] || die "no Chromium on PATH. Ask an administrator to install Chromium or Chrome."
apt-get -q update >/dev/null 2>&1 || true
candidate=$(LC_ALL=C apt-cache policy chromium | sed -n 's/^  Candidate: //p')
case $candidate in
    '' | '(none)' | *snap*) die "the distribution has no package of Chromium but a snap. Install Chromium or Chrome." ;;
esac
printf 'browser: installing chromium\n' >&2
DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends chromium >/dev/null || die "apt can't install chromium."
look || die "the chromium that apt installed does not run."
