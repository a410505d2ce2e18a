# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Signals of an agent in the process of a test."""

from __future__ import annotations

import socket

from convoy_node.machine.signals import Signals


class NoSignals(Signals):
    """Signals that only a test gives. Those of an agent would take over the handlers of this process."""

    def __init__(self) -> None:
        self.is_over = self.read_again = False
        self.pipe, self.other_end = socket.socketpair()
        self.pipe.setblocking(False)

    def leave_to_system(self) -> bool:
        return not self.is_over
