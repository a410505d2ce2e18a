# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The source of each rule in force."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.module_utils._rule_checks.sources import RuleSource, origins

IN_FORCE = {
    "rolling_rules": {"global": 1, "roles": {"web": 2}},
    "role_order": {"web": ["db", "cache"], "app": ["db"]},
    "stages": [{"name": "canary", "hosts": 1}, {"name": "rest"}],
}


def test_each_rule_has_its_source() -> None:
    file = RuleSource("rules.yml", {"rolling_rules": {"global": 1}, "stages": IN_FORCE["stages"]})
    inline = RuleSource("instructions", {"rolling_rules": {"roles": {"web": 2}}, "role_order": {"web": ["cache"]}})
    order = {"role_order": {"web": ["db"], "app": ["db"]}}
    assert origins(IN_FORCE, [file, inline], order) == {
        "rolling_rules.global": "rules.yml",
        "rolling_rules.roles.web": "instructions",
        "role_order.web": "instructions and upgrade_roles",
        "role_order.app": "upgrade_roles",
        "stages[0]": "rules.yml",
        "stages[1]": "rules.yml",
    }


def test_what_was_in_force_before_comes_from_the_ledger() -> None:
    assert set(origins(IN_FORCE, [], {}).values()) == {"the ledger"}


def test_of_two_sources_with_the_same_rule_the_stronger_counts() -> None:
    rules = {"rolling_rules": {"global": 1}}
    assert origins(rules, [RuleSource("file", rules), RuleSource("instructions", rules)], {}) == {
        "rolling_rules.global": "instructions"
    }
