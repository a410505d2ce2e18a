#!/usr/bin/env bash
# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
#
# test.sh [--quick] [CHECK...]: runs all checks, or the given ones. --list lists them.
set -euo pipefail
cd "$(dirname "$0")/.."
# The checks end with the process that started this script, also if that was killed before they began.
export CONVOY_TEST_PARENT=$PPID
export CONVOY_TEST_BEGAN=${CONVOY_TEST_BEGAN:-$(date +%s)}

tools/setup.sh test
exec .venv/bin/python tools/checks "$@"
