#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Prints the path of a Chromium, in which the tests look at reports: one on PATH, else that of the distribution's package chromium,
# which root gets installed (a hundred megabytes; most of a minute). Ubuntu's package only fetches a snap, so it is not taken there.
set -euo pipefail

die() { printf 'browser: %s\n' "$*" >&2; exit 1; }

look() {
    local name path
    for name in chromium google-chrome google-chrome-stable chromium-browser; do
        path=$(command -v "$name") || continue
        # What only fetches a snap does not answer, nor do those that can't run here.
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
