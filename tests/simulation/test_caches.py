# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The caches of nights change nothing: a night in which all is decoded again is the same."""

from __future__ import annotations

import pytest

from . import night


@pytest.mark.parametrize("seed", [501, 519])
def test_a_night_with_shared_decoders_is_the_same_as_one_without(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for share in (0.0, 1.0):
        monkeypatch.setattr(night, "_WITH_SHARED_DECODING", share)
        result = night.run(seed)
        found.append((result.seconds, result.requests, result.writes, result.admissions, result.violations))
    assert found[0] == found[1]
