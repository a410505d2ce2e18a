# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet that is under fire."""

from __future__ import annotations

OLD, NEW = "1", "2"

FLEET = {
    **{f"controller{number}": "controller" for number in range(1, 4)},
    **{f"compute{number}": "compute" for number in range(1, 13)},
    **{f"storage{number}": "storage" for number in range(1, 6)},
    **{f"web{number}": "web" for number in range(1, 6)},
}
ALL = ("controller", "compute", "storage", "web")
DATA = ("compute", "storage")
