# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the node's role, and of tasks on hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.failure_text import failure_text
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.play_hosts import time_left


class FilterModule:
    """The filters of this file, by name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return name -> filter."""
        return {"failure_text": failure_text, "time_left": time_left}
