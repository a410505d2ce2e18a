#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs Molecule's scenario in the lab, with its idempotence check. The lab is also removed if the run is interrupted.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The lab is removed when this shell closes the pipe, also if the shell is killed.
exec {held}> >(exec python tests/lab --name "$CONVOY_LAB_NAME" guard)
guard=$!
trap 'exec {held}>&-; wait "$guard"' EXIT
molecule test {held}>&-
