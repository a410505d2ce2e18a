#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# Runs Molecule's scenario on the lab, with its idempotence check. A run that was ended early leaves no lab.
set -euo pipefail
cd "$(dirname "$0")/../.."

# The lab is taken down when this shell lets go of the pipe, also where it is killed.
exec {held}> >(exec python tests/lab --name "$CONVOY_LAB_NAME" guard)
guard=$!
trap 'exec {held}>&-; wait "$guard"' EXIT
molecule test {held}>&-
