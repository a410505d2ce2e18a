# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How hypothesis works here, the same examples on every run of the CI, new ones at a desk."""

from __future__ import annotations

from hypothesis import settings
from missing import is_strict

settings.register_profile("desk", max_examples=120, deadline=None)
settings.register_profile("ci", max_examples=120, deadline=None, derandomize=True)
settings.load_profile("ci" if is_strict() else "desk")
