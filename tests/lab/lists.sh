#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# lists.sh [now]: prints the folder of apt's lists that the lab uses: what the machine's sources have, asked at most once
# an hour, or now. The machine's own lists stay as they are. One set of lists for the nodes' packages and for the
# snapshots they are upgraded to, so that none of these is older than it should be.
set -euo pipefail
cd "$(dirname "$0")/../.."

lists=$PWD/.cache/lab/lists
mkdir -p "$lists/partial"
# Two labs may want them at the same time.
exec 8>.cache/lab/lists.lock
flock 8
if [ "${1:-}" = now ] || [ -z "$(find "$lists/asked" -mmin -60 2>/dev/null)" ]; then
    # Without a network the lists of last time have to do.
    if apt-get -q -o Dir::State::lists="$lists" -o APT::Sandbox::User=root update >/dev/null 2>&1; then
        touch "$lists/asked"
    fi
fi
echo "$lists"
