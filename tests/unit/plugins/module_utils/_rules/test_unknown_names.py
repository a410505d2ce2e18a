# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names in the rules that are no role, group or host of the fleet, and optional names."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.role_order import resolve
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.unknown_names import refuse_unknown

MEMBERS = {"web1": "web", "web2": "web", "db1": "db"}
NAMES: list[tuple[dict[str, Any], str, str]] = [
    ({"rolling_rules": {"roles": {"wbe": 3}}}, "rolling_rules.roles.wbe", "did you mean 'web'?"),
    ({"failure_rules": {"roles": {"wbe": 3}}}, "failure_rules.roles.wbe", "did you mean 'web'?"),
    ({"role_order": {"wbe": "db"}}, "role_order.wbe", "did you mean 'web'?"),
    ({"role_order": {"web": ["db", "cache"]}}, "role_order.web", "The fleet's roles are db, web."),
    ({"stages": [{"hosts": ["web1", "wbe2"]}]}, "stages[0].hosts", "did you mean 'web2'?"),
    ({"stages": [{"roles": ["web", "dbb"], "hosts": 1}]}, "stages[0].roles", "did you mean 'db'?"),
    ({"group_mappings": {"weeb": "wbe"}, "rolling_rules": {"roles": {"weeb": 1}}}, "group_mappings.weeb", "'web'?"),
]


def refuse(raw: dict[str, Any], members: dict[str, str] | None = None, more_order: Any = None) -> None:
    found = MEMBERS if members is None else members
    refuse_unknown(resolve(parse(raw), set(found.values()), found).unknown, found, more_order)


@pytest.mark.parametrize(("raw", "key", "meant"), NAMES)
def test_an_unknown_name_is_refused_with_its_key_and_the_closest_name(
    raw: dict[str, Any], key: str, meant: str
) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse(raw)
    assert refused.value.code == "unknown_names"
    assert refused.value.details["key"] == key
    assert refused.value.message.startswith(f"instructions: {key}: ")
    assert meant in refused.value.message
    # The suggested fix can be pasted into the rules.
    assert refused.value.message.endswith(f"optional_names: [{', '.join(refused.value.details['names'])}].")
    refuse({**raw, "optional_names": refused.value.details["names"]})


@pytest.mark.parametrize("raw", [raw for raw, _key, _meant in NAMES])
def test_another_optional_name_does_not_help(raw: dict[str, Any]) -> None:
    with pytest.raises(UpgradeError, match="this fleet"):
        refuse({**raw, "optional_names": ["network"]})


def test_names_of_roles_groups_and_hosts_are_accepted() -> None:
    refuse(
        {
            "rolling_rules": {"roles": {"all": 1, "web": 1, "db": 1}},
            "group_mappings": {"all": ["web", "d"]},
            "role_order": {"web": "db"},
            "stages": [{"hosts": ["web1", "db1"]}],
        }
    )


def test_every_key_with_an_unknown_name_is_reported() -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse({"rolling_rules": {"roles": {"wbe": 3, "dbb": 1}}, "failure_rules": {"roles": {"wbe": 1}}})
    assert "Also affected: rolling_rules.roles.dbb, failure_rules.roles.wbe." in refused.value.message
    assert refused.value.details["names"] == ["wbe", "dbb"]


def test_without_known_hosts_every_name_is_refused() -> None:
    with pytest.raises(UpgradeError, match="No host of the fleet is known yet"):
        refuse({"rolling_rules": {"roles": {"web": 3}}}, {})
    refuse({"rolling_rules": {"global": 3}}, {})


def test_order_from_the_inventory_may_name_a_role_without_hosts_and_nothing_else_may() -> None:
    order = {"web": ["db", "network"]}
    refuse({"role_order": order}, more_order=order)
    with pytest.raises(UpgradeError):
        refuse({"role_order": order, "rolling_rules": {"roles": {"network": 1}}}, more_order=order)
