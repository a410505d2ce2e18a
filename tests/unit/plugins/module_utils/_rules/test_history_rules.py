# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``history``: how many rollouts the history keeps; which values are refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.history_rules import (
    HistoryRules,
    parse_history_rules,
)


@pytest.mark.parametrize("raw", [None, {}, {"keep_rollouts": None}, {"keep_rollouts": 50}])
def test_fifty_rollouts_are_kept_by_default_and_not_stored(raw: Any) -> None:
    assert parse_history_rules(raw) == HistoryRules(50)
    assert parse_history_rules(raw).plain() == {}


@pytest.mark.parametrize(("given", "kept"), [(2, 2), ("7", 7), (" 0100 ", 100), (1000, 1000)])
def test_the_number_is_read_and_written_back(given: Any, kept: int) -> None:
    rules = parse_history_rules({"keep_rollouts": given})
    assert rules.plain() == {"keep_rollouts": kept}
    assert parse_history_rules(rules.plain()) == rules


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (50, "instructions: history: 50 is not a mapping of names to values."),
        (
            {"keep_rollout": 5},
            "instructions: history.keep_rollout: unknown key; did you mean 'keep_rollouts'? "
            "Known are: history.keep_rollouts.",
        ),
        *(
            (
                {"keep_rollouts": given},
                f"instructions: history.keep_rollouts: {given!r} is not a number of rollouts from 2 (the current one and "
                "the one before) to 1000.",
            )
            for given in (0, 1, 1001, -3, 2.5, True, "all", "10%", "9" * 13)
        ),
    ],
)
def test_invalid_values_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        parse_history_rules(raw)
    assert caught.value.code == "bad_instructions"
    assert caught.value.message == message
