#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# rulebook.sh: prints the path of ansible-rulebook, with which a test runs the event source. It is in an environment of its own in .cache.
set -euo pipefail
cd "$(dirname "$0")/.."

die() { printf 'rulebook: %s\n' "$*" >&2; exit 1; }

# Its rule engine is a program in Java.
command -v java >/dev/null || die "java is not on PATH. Install Java 17 or later (openjdk-17-jre-headless)."
place=$PWD/.cache/rulebook
if [ ! -x "$place/bin/ansible-rulebook" ]; then
    rm -rf "$place"
    python=.venv/bin/python
    "$python" -m venv "$place"
    "$place/bin/pip" install -qq --disable-pip-version-check --require-hashes -r requirements/locked/rulebook.txt >&2 ||
        { rm -rf "$place"; die "pip gives no ansible-rulebook."; }
fi
echo "$place/bin/ansible-rulebook"
