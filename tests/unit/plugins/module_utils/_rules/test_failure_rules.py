# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""``failure_rules``: which values are valid, and which are refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.caps import Cap
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.failure_rules import (
    FailureRules,
    parse_failure_rules,
)

EVERYTHING = {"global": 2, "roles": {"compute": "10%"}, "fleet": 5}


def test_every_key_is_read_and_written_back() -> None:
    rules = parse_failure_rules(EVERYTHING)
    assert rules == FailureRules(Cap(2), {"compute": Cap(10, is_percent=True)}, Cap(5))
    assert rules.plain() == EVERYTHING
    assert parse_failure_rules(None).plain() == {}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (3, "instructions: failure_rules: 3 is not a mapping of names to values."),
        (
            {"flet": 1},
            "instructions: failure_rules.flet: unknown key; did you mean 'fleet'? Known are: failure_rules.global,",
        ),
        (
            {"fleet": 0},
            "failure_rules.fleet: 0 would stop a rollout before it begins; 1 stops it at the first failure.",
        ),
        ({"roles": {"web": "0%"}}, "failure_rules.roles.web: '0%' would stop a rollout before it begins"),
        ({"global": -1}, "failure_rules.global: -1 is not a cap."),
    ],
)
def test_invalid_values_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        parse_failure_rules(raw)
    assert message in caught.value.message
