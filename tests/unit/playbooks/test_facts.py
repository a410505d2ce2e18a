# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which facts the playbooks gather: those that operators ask for, and those without which shipped services fail."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible.module_utils.facts import default_collectors
from ansible.module_utils.facts.collector import collector_classes_from_gather_subset
from ansible.plugins.filter.core import FilterModule
from devkit.agent import ROOT
from jinja2 import Environment

NEEDED = {"pkg_mgr", "service_mgr"}
# As in the module setup.
MINIMAL = frozenset(("distribution", "env", "local", "platform", "user", *NEEDED))


def subset(**given: Any) -> list[str]:
    """Return what the playbooks give to the module setup."""
    shared = yaml.safe_load((ROOT / "playbooks/group_vars/all.yml").read_text())
    environment = Environment(autoescape=False)
    environment.filters["flatten"] = FilterModule().filters()["flatten"]
    return environment.from_string(shared["upgrade_fact_subset"]).render(**given).split(",")


def gathered(chosen: list[str]) -> set[str]:
    found = collector_classes_from_gather_subset(
        all_collector_classes=default_collectors.collectors,
        minimal_gather_subset=MINIMAL,
        gather_subset=chosen,
        platform_info={"system": "Linux"},
    )
    return {one.name for one in found}


@pytest.mark.parametrize(
    "given",
    [
        ["!all", "!min", "network"],
        "!all,!min,network",
        ["!all", "!min"],
        ["!pkg_mgr"],
        ["!hardware"],
        ["hardware"],
        ["all", "!min"],
        "all",
    ],
)
def test_no_subset_leaves_out_what_shipped_services_need_or_changes_the_rest(given: str | list[str]) -> None:
    asked = given.split(",") if isinstance(given, str) else given
    # What these need is gathered with them.
    needed = NEEDED | {"distribution", "platform"}
    assert gathered(subset(upgrade_gather_subset=given)) - needed == gathered(asked) - needed
    assert gathered(subset(upgrade_gather_subset=given)) >= NEEDED


def test_by_default_few_facts_are_gathered() -> None:
    for found in (subset(), subset(upgrade_gather_subset=[]), subset(upgrade_gather_subset="")):
        assert gathered(found) == NEEDED | {"distribution", "platform"}
