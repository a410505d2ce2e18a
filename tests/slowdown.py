# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How busy this machine is, for tests of times."""

from __future__ import annotations

import time


def slowdown() -> float:
    """Return how much longer computing takes than it would if nothing else ran on this machine."""
    begun, of_processor = time.monotonic(), time.thread_time()
    while time.thread_time() - of_processor < 0.2:
        pass
    return (time.monotonic() - begun) / 0.2
