# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All data files of the live page follow their schemas, which describe each property that there is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import progress_update
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_page import LivePage
from devkit.agent import ROOT
from integration.support.fleets.scenes import Scene
from job_fleet import FLEET, begin, complete_fleet, reports
from jsonschema import Draft7Validator
from memory_consul import MemoryConsul

SCHEMAS = {
    name: json.loads((ROOT / f"schemas/{name}.json").read_text())
    for name in ("page", "page_hosts", "page_hosts_index", "page_changes")
}


def schema_of(name: str) -> str:
    """Return the schema of a file of the page."""
    known = {"state.json": "page", "hosts/index.json": "page_hosts_index", "changes.json": "page_changes"}
    return known.get(name, "page_hosts")


def mistakes(folder: Path) -> dict[str, list[str]]:
    """Return file -> what is wrong with it, for files with mistakes."""
    files = sorted(folder.rglob("*.json"))
    assert {schema_of(str(one.relative_to(folder))) for one in files} == set(SCHEMAS)
    found = {}
    for file in files:
        name = str(file.relative_to(folder))
        validator = Draft7Validator(SCHEMAS[schema_of(name)])
        found[name] = [f"{one.json_path}: {one.message}" for one in validator.iter_errors(json.loads(file.read_text()))]
    return {name: errors for name, errors in found.items() if errors}


def write(store: Store, folder: Path, fleet: Any) -> None:
    with LivePage(store, str(folder)) as page:
        page.update(progress_update(read_fleet(store, fleet=fleet)))
        assert page.warning == ""


class _Keys:
    """What a scene writes its keys to."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}

    def load(self, pairs: Any) -> None:
        self.keys |= {key: value.encode() for key, value in pairs}


@pytest.mark.parametrize("waits", [False, True])
def test_the_page_of_a_rollout_follows_the_schemas(tmp_path: Path, waits: bool) -> None:
    keys: Any = _Keys()
    fleet = Scene(computes=60, waits=waits).write(keys)
    with MemoryConsul(keys=keys.keys).in_place():
        write(Store(Settings()), tmp_path, fleet)
    assert mistakes(tmp_path) == {}


def test_the_page_of_a_job_follows_the_schemas(tmp_path: Path) -> None:
    consul = complete_fleet()
    with consul.in_place():
        store = consul.store()
        begin(store)
        reports(consul, "web1", "failed", error="no disk", machine="m", release="0.1.0-3f6c1a90b2", role="web")
        output = {"job": "j1", "command": "restart", "state": "failed", "exit_status": 3, "at": 5, "seconds": 0.5}
        consul.write("upgrade/job_output/web1", [{**output, "error": "no disk", "output": "x" * 9000}])
        reports(consul, "web2", "lost")
        write(store, tmp_path, FLEET)
    assert mistakes(tmp_path) == {}
    hosts = {}
    for file in (tmp_path / "hosts").glob("[0-9]*.json"):
        hosts |= json.loads(file.read_text())
    assert [one["output"][:3] for one in hosts["web1"]["jobs"]] == ["xxx"]


def test_a_page_before_the_first_rollout_and_of_records_that_can_t_be_read_follows_the_schemas(tmp_path: Path) -> None:
    for number, keys in enumerate(({}, {"upgrade/hosts/web1": b"garbage", "upgrade/job_output/web1": b"garbage"})):
        folder = tmp_path / str(number)
        folder.mkdir()
        with MemoryConsul(keys={"running/versions/1/web1": b"1", **keys}).in_place():
            write(Store(Settings()), folder, {"web1": "web"})
        assert mistakes(folder) == {}


def _parts(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for one in schema.values():
            yield from _parts(one)
    elif isinstance(schema, list):
        for one in schema:
            yield from _parts(one)


@pytest.mark.parametrize("name", [*SCHEMAS])
def test_a_schema_is_valid_and_says_what_each_property_is(name: str) -> None:
    Draft7Validator.check_schema(SCHEMAS[name])
    assert SCHEMAS[name]["title"] and SCHEMAS[name]["description"]
    for part in _parts(SCHEMAS[name]):
        if isinstance(part.get("properties"), dict):
            assert sorted(part["properties"]) == part["required"]
            bare = [
                key
                for key, one in part["properties"].items()
                if not {"description", "enum", "properties", "const"} & set(one)
            ]
            assert bare == []
