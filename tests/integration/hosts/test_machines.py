# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two machines that report under one name: that is reported, and gives neither of them nor any other host an admission."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.processes import machine_id
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import read_fleet
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, names, record, seed
from integration.support.runs.commands import control
from integration.support.runs.playbook import Runner, Task

# On each release, the examples of the documentation run the module.
pytestmark = pytest.mark.one_release

FLEET = names(compute=3)
CAPPED = {"rolling_rules": {"global": 1}}
WARNING = "compute1: two machines have reported under this name, b and a."


def report_of(state: str, machine: str, version: str = "2", **options: Any) -> Task:
    given = {"name": "compute1", "version": version, "state": state, "machine": machine, **options}
    return {"convoy.upgrade.consul_upgrade_host_report": given}


@pytest.fixture
def going(store: Store, consul: RawKV) -> Store:
    """A rollout in which compute1 may go, alone."""
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", CAPPED, fleet=FLEET))
    assert gates(consul)["host/compute1"] == "True"
    return store


def warnings(store: Store) -> list[str]:
    return [text for text in read_fleet(store, fleet=FLEET).warnings if "two machines" in text]


def test_while_one_is_at_work_the_other_neither_starts_nor_gives_its_slot_back(
    run: Runner, going: Store, consul: RawKV
) -> None:
    run([report_of("started", "a")])
    before = record(consul, "compute1")
    assert before["machine"] == "a"
    dry = run([report_of("upgraded", "b")], check=True)[0]
    assert dry["failure"]["code"] == "other_machine"
    assert record(consul, "compute1") == before
    for state in ("started", "upgraded", "failed"):
        refused = run([report_of(state, "b")])[0]
        assert refused["failure"]["code"] == "other_machine"
        assert "run ansible-playbook convoy.upgrade.forget -e host=compute1 -e force=true." in refused["msg"]
    assert record(consul, "compute1") == {**before, "other_machine": "b"}
    assert "running/versions/2/compute1" not in consul.tree()
    done = make_pass(going, PassRequest(fleet=FLEET))
    assert done.admissions == []
    assert any(text.startswith("compute1: two machines have reported") for text in done.warnings)
    view = read_fleet(going, fleet=FLEET, name="compute1")
    assert view.details is not None
    assert any("two machines have reported under this name, a and b" in line for line in view.details["explanation"])
    # The one that has begun goes on, and ends it.
    assert not run([report_of("upgraded", "a")])[0]["failed"]
    assert [one.host for one in make_pass(going, PassRequest(fleet=FLEET)).admissions] == ["compute2"]


def test_a_reinstalled_host_is_shown_until_its_next_version(run: Runner, going: Store, consul: RawKV) -> None:
    run([report_of("started", "a"), report_of("upgraded", "a")])
    assert warnings(going) == []
    changed, again = run([report_of("upgraded", "b"), report_of("upgraded", "b")])
    assert (changed["changed"], again["changed"]) == (True, False)
    assert warnings(going)[0].startswith(WARNING)
    # Reports that know of no machine, such as those of a run of Ansible, leave it as it is.
    report = report_of("upgraded", "")
    run([report])
    assert (record(consul, "compute1")["machine"], record(consul, "compute1")["other_machine"]) == ("b", "a")
    run([report_of("upgraded", "b", "3")])
    assert warnings(going) == []


def test_a_failed_host_may_be_reinstalled_and_a_retry_ends_the_warning(
    run: Runner, going: Store, consul: RawKV
) -> None:
    run([report_of("started", "a"), report_of("failed", "a", error="no disk")])
    assert not run([report_of("started", "b")])[0]["failed"]
    assert warnings(going)[0].startswith(WARNING)
    run([report_of("failed", "b", error="no disk"), control("retry", hosts=["compute1"], fleet=FLEET)])
    assert record(consul, "compute1")["machine"] == "b"
    assert warnings(going) == []


def test_a_machine_that_reports_under_another_name_is_reported_until_the_previous_one_is_forgotten(
    run: Runner, going: Store
) -> None:
    run([report_of("started", "a"), report_of("upgraded", "a"), report_of("upgraded", "a", name="compute3")])
    texts = [text for text in read_fleet(going, fleet=FLEET, name="compute3").warnings if "one machine" in text]
    assert texts == [
        "compute1, compute3 have reported from one machine, a. If they are clones, give each an /etc/machine-id of its own. "
        "If a host was renamed, remove its former name: ansible-playbook convoy.upgrade.forget -e host=compute1."
    ]
    details = read_fleet(going, fleet=FLEET, name="compute3").details
    assert details is not None
    assert texts[0] in details["explanation"]
    run([control("forget", hosts=["compute1"], fleet=FLEET)])
    assert not [text for text in read_fleet(going, fleet=FLEET).warnings if "one machine" in text]


def test_a_machine_is_identified_by_a_hash_of_its_id(tmp_path: Path) -> None:
    path = tmp_path / "machine-id"
    assert machine_id(str(path)) is None
    for nothing in ("", "\n", "uninitialized\n"):
        path.write_text(nothing)
        assert machine_id(str(path)) is None
    path.write_text("0123456789abcdef0123456789abcdef\n")
    expected = hashlib.sha256(b"convoy.upgrade 0123456789abcdef0123456789abcdef").hexdigest()[:16]
    assert machine_id(str(path)) == expected
