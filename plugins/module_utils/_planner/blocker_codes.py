# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The codes of blockers in results: stable names for programs."""

from __future__ import annotations

PAUSE, ABORT, BUDGET, HOURS = "paused", "aborted", "failure_budget", "hours"
# No node begins a job after its expiry.
EXPIRED = "expired"
