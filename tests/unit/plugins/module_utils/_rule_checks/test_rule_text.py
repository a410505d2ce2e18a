# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One rule of the instructions as a line of text."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.rule_text import rule_line

RULES = {
    "rolling_rules": {"global": 1, "roles": {"web": "10%", "web.eu": 3, "web.eu[1]": 4}, "complete_sets": True},
    "health": {"soak": 5400, "progress_deadline": 86400, "consul_checks": []},
    "stages": [
        {"name": "canary", "hosts": 1, "soak": 600},
        {"name": "half", "hosts": "50%", "roles": ["web", "db"], "approve": True},
        {"name": "named", "hosts": ["web1", "web2"], "soak": 45, "approve": True},
        {"name": "db", "roles": ["db"]},
        {"name": "rest"},
        "no stage",
    ],
    "role_order": {"compute": ["controller", "db"]},
    "failure_rules": {"fleet": 0},
}


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("rolling_rules.global", "rolling_rules.global: 1"),
        ("rolling_rules.roles.web", "rolling_rules.roles.web: 10%"),
        ("rolling_rules.roles.web.eu", "rolling_rules.roles.web.eu: 3"),
        ("rolling_rules.roles.web.eu[1]", "rolling_rules.roles.web.eu[1]: 4"),
        ("rolling_rules.complete_sets", "rolling_rules.complete_sets: true"),
        ("stages[0]", "stages[0]: canary, 1 of each role, soaks 10m"),
        ("stages[0].soak", "stages[0].soak: 10m"),
        ("stages[1]", "stages[1]: half, 50% of web, db, needs an approval"),
        ("stages[2]", "stages[2]: named, web1, web2, soaks 45s, needs an approval"),
        ("stages[3]", "stages[3]: db, all of db"),
        ("stages[4]", "stages[4]: rest, all that are left"),
        ("stages[5]", "stages[5]: no stage"),
        ("health.soak", "health.soak: 90m"),
        ("health.progress_deadline", "health.progress_deadline: 1d"),
        ("stages[1].approve", "stages[1].approve: true"),
        ("role_order.compute", 'role_order.compute: ["controller", "db"]'),
        ("failure_rules.fleet", "failure_rules.fleet: 0"),
    ],
)
def test_a_line_is_found_by_the_key_that_messages_name(key: str, line: str) -> None:
    assert rule_line(RULES, key) == line


@pytest.mark.parametrize(
    "key",
    ["rolling_rules.fleet", "rolling_rules.roles.we", "stages[6]", "stages.name", "rolling_rules.global.x", "x[0]"],
)
def test_what_the_rules_do_not_have_has_no_line(key: str) -> None:
    assert rule_line(RULES, key) == ""
