# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""docs/reference.md names all that stands in Consul, and docs/rules.md all that instructions may say."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import yaml
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet import fleet, ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._host_states import state_names
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.legacy_keys import LegacyKeys
from ansible_collections.convoy.upgrade.plugins.modules import consul_upgrade_info, consul_upgrade_plan
from devkit.agent import ROOT
from devkit.sources import entry, trees, words

PAGE = (ROOT / "docs/reference.md").read_text() + (ROOT / "docs/rules.md").read_text()
PARTS = {match[1]: match[2] for match in re.finditer(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)}


def named(part: str) -> set[str]:
    """Return what is in backticks at the beginnings of the rows of a part's tables."""
    firsts = [row.split(" | ")[0] for row in PARTS[part].splitlines() if row.startswith("| ")]
    return {name for first in firsts for name in re.findall(r"`([^`]+)`", first)}


def keys_of(layout: object) -> Iterator[str]:
    """Yield every key and folder of a layout, with names such as ``<host>`` for its parts."""
    for name, what in inspect.getmembers(type(layout)):
        if isinstance(what, property):
            found = getattr(layout, name)
            yield from (found,) if isinstance(found, str) else found
        elif inspect.isfunction(what) and not name.startswith("_"):
            parts = [one for one in inspect.signature(what).parameters if one != "self"]
            if parts == ["key"]:
                continue  # It takes a key apart.
            if parts == ["scope", "name"]:
                yield from (what(layout, "global"), what(layout, "role", "<role>"), what(layout, "host", "<host>"))
            else:
                yield what(layout, *(f"<{one}>" for one in parts))


def refusal(rules: dict[str, Any]) -> str:
    try:
        parse(rules)
    except UpgradeError as error:
        return error.message
    return ""


def instruction_keys() -> set[str]:
    """Return all keys that the parser knows: it names them where it refuses another one."""
    found: set[str] = set()
    left: list[tuple[str, ...]] = [()]
    while left:
        above = left.pop()
        for stranger in ({"?": 1}, [{"?": 1}]):
            rules: Any = stranger
            for name in reversed(above):
                rules = {name: rules}
            known = re.search(
                r": unknown key.*\. Known are: (.+)\.$", refusal(rules) if isinstance(rules, dict) else ""
            )
            for key in known[1].split(", ") if known else ():
                found.add(key.replace("[0]", "[]"))
                if "[" not in key:
                    left.append(tuple(key.split(".")))
    return found


@pytest.mark.parametrize("layout", [Keys(), LegacyKeys()], ids=["today", "older"])
def test_every_key_is_named(layout: object) -> None:
    rows = named("Keys")
    folders = {key for key in keys_of(layout) if key.endswith("/")}
    assert {key for key in keys_of(layout) if key not in rows and key not in folders} == set()
    assert {folder for folder in folders if not any(key.startswith(folder) for key in rows)} == set()


def test_every_key_of_the_instructions_is_named_and_no_other() -> None:
    known = instruction_keys()
    assert {"rolling_rules.fleet", "stages[].approve", "freezes[].reason"} <= known
    # What only holds others is named by them.
    assert {key for key in known if not any(other.startswith(f"{key}.") for other in known)} == named("Instructions")


def test_every_state_is_named() -> None:
    assert named("States of a host") == set(state_names.STATES)


def test_every_field_of_the_ledger_and_of_records_is_named() -> None:
    assert named("The ledger") == {one.name for one in fields(ledger.Ledger)}
    assert named("The record of a host") == set(fleet.HostRecord("2.10", fleet.STARTED).plain())
    page = PARTS["The record of a host"]
    assert [name for name in (*fleet.RECORD_STATES, *fleet.POST_STATES) if f"`{name}`" not in page] == []
    assert [name for name in ledger.STATES if f"`{name}`" not in PARTS["The ledger"]] == []


def test_every_entry_of_the_history_is_named_and_no_other() -> None:
    written = {
        name
        for tree in trees().values()
        for one in ast.walk(tree)
        if isinstance(one, ast.Dict)
        for name in words(entry(one, "what"))
    }
    assert named("The history") - {"what"} == written


@pytest.mark.parametrize(
    ("documentation", "name"),
    [
        (consul_upgrade_info.RETURN, "hosts"),
        (consul_upgrade_info.RETURN, "host"),
        (consul_upgrade_plan.RETURN, "hosts"),
    ],
)
def test_results_document_every_field_of_a_host(documentation: str, name: str) -> None:
    documented = yaml.safe_load(documentation)[name]["contains"]
    assert {one.name for one in fields(HostView)} - documented.keys() == set()
