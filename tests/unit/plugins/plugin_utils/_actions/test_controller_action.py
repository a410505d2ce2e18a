# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fleet of the inventory, and patterns with its groups, in the options of a task."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.host_patterns import select_hosts
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.controller_action import fleet_options

GROUPS = {"all": ["web1", "web2", "db1"], "web": ["web1", "web2"], "db": ["db1"], "eu": ["web2", "db1"]}
SPEC: dict[str, Any] = {"fleet": {}, "limit": {}, "job": {}}


def options(**given: Any) -> dict[str, Any]:
    return fleet_options({"upgrade_roles": {"web": {}, "db": {}}, **given}, {"groups": GROUPS}, SPEC)


def test_the_hosts_of_a_job_may_be_those_of_a_group_of_the_inventory() -> None:
    found = options(limit=["eu"], job={"run": "restart", "only": ["eu,!db"]})
    assert select_hosts(found["limit"], found["fleet"], {}) == {"web2", "db1"}
    assert found["job"]["run"] == "restart"
    assert select_hosts(found["job"]["only"], found["fleet"], {}) == {"web2"}


def test_a_mistake_in_the_patterns_of_a_job_names_its_variable() -> None:
    with pytest.raises(UpgradeError, match=r"^only: .* empty pattern"):
        options(job={"run": "restart", "only": ["web,,db"]})


@pytest.mark.parametrize("job", [None, {"run": "restart"}, {"only": None}, {"only": []}, {"only": [1]}, "restart"])
def test_a_job_without_patterns_is_left_as_it_is(job: object) -> None:
    assert "job" not in options(job=job)
