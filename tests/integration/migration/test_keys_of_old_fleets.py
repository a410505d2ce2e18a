# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys as old fleets have them: folders, empty values, bytes, twins, other people's keys."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import (
    PassRequest,
    PassResult,
    make_pass,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, gates, history, ledger, names, seed
from integration.support.runs.commands import UNLIMITED

pytestmark = pytest.mark.one_release

ONE_BY_ONE = {"rolling_rules": {"global": 1}}


def states(outcome: PassResult) -> dict[str, str]:
    return {host: view.state for host, view in outcome.hosts().items()}


FOLDERS = [
    "running/", "running/versions/", "running/versions/1/", "config_state/", f"{GATES}/", f"{GATES}/host/", f"{GATES}/role/",
    "upgrade/", "upgrade/hosts/", "upgrade/hold/", "upgrade/hold/host/", "upgrade/history/",
]  # fmt: skip


@pytest.mark.parametrize("value", [b"", b"\xff", b"folder"])
def test_placeholders_of_folders_are_no_hosts(store: Store, consul: RawKV, value: bytes) -> None:
    seed(consul, names(compute=2))
    for key in FOLDERS:
        consul.put(key, value)
    outcome = make_pass(store, PassRequest(version="2", rules=ONE_BY_ONE))
    assert states(outcome) == {"compute1": "upgrading", "compute2": "pending"}
    assert not outcome.warnings
    assert gates(consul) == {"global": "False", "host/compute1": "True"}
    assert ask_gate(store, {"compute1": "compute"})["compute1"].value


@pytest.mark.parametrize("value", [b"", b"yesterday", b"\xff", b"1e400", b"1700000000.5"])
def test_a_report_counts_whatever_its_time_is(store: Store, consul: RawKV, value: bytes) -> None:
    consul.put("current_version", "1")
    consul.put("running/versions/2/compute1", value)
    assert states(make_pass(store, PassRequest(version="2", rules=UNLIMITED))) == {"compute1": "upgraded"}


def test_keys_that_are_no_reports_are_passed_over_and_reported(store: Store, consul: RawKV) -> None:
    seed(consul, ["compute1"])
    consul.put("running/versions/1/rack2/compute9", "1")
    consul.put("running/versions/stray", "1")
    consul.put(f"{GATES}/host/rack2/compute9", "True")
    consul.put(f"{GATES}/globall", "True")
    outcome = make_pass(store, PassRequest(version="1", rules=UNLIMITED))
    assert list(outcome.hosts()) == ["compute1"]
    text = "\n".join(outcome.warnings)
    for key in (
        "running/versions/1/rack2/compute9",
        "running/versions/stray",
        f"{GATES}/globall",
        f"{GATES}/host/rack2",
    ):
        assert key in text


def test_of_two_reports_the_later_one_counts_and_it_is_reported(store: Store, consul: RawKV) -> None:
    consul.load(
        [
            ("current_version", "2"),
            (f"{GATES}/global", "False"),
            ("running/versions/1/compute1", "100"),
            ("running/versions/2/compute1", "200"),
            ("running/versions/1/compute2", "300"),
            ("running/versions/2/compute2", "200"),
            ("running/versions/1/compute3", "?"),
            ("running/versions/2/compute3", "?"),
        ]
    )
    outcome = make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 0}}))
    assert states(outcome) == {"compute1": "upgraded", "compute2": "pending", "compute3": "pending"}
    assert "compute1 reported several versions; '2' counts. Ignored: running/versions/1/compute1." in outcome.warnings


@pytest.mark.parametrize("version", ["2.10", "2.10-rc1", "v2.10_final", "2.10+git~1", "100%"])
def test_versions_may_have_dots_dashes_and_signs(store: Store, consul: RawKV, version: str) -> None:
    seed(consul, names(compute=2), f"{version}.old")
    make_pass(store, PassRequest(version=version, rules=ONE_BY_ONE))
    for number, host in enumerate(("compute1", "compute2")):
        assert consul.get(f"{GATES}/host/{host}") == b"True"
        write_report(store, HostReport(host, version, "started"))
        write_report(store, HostReport(host, version, "upgraded"))
        assert make_pass(store, PassRequest(version=version, rules=ONE_BY_ONE)).plan.complete is (number == 1)
    assert set(consul.tree("running/")) == {f"running/versions/{version}/compute{number}" for number in (1, 2)}
    assert consul.get("current_version") == version.encode()
    assert (ledger(consul)["state"], ledger(consul)["previous_version"]) == ("complete", f"{version}.old")


@pytest.mark.parametrize("value", [b"", b"\xff", b"{", b'{"version": 2, "state": "done"}', b"[]", b"null"])
def test_a_record_that_cannot_be_read_keeps_its_slot(store: Store, consul: RawKV, value: bytes) -> None:
    seed(consul, names(compute=2))
    consul.put("upgrade/hosts/compute1", value)
    outcome = make_pass(store, PassRequest(version="2", rules=ONE_BY_ONE))
    assert states(outcome) == {"compute1": "failed", "compute2": "pending"}
    assert "the record upgrade/hosts/compute1 can't be read" in outcome.hosts()["compute1"].reason
    assert gates(consul) == {"global": "False"}


@pytest.mark.parametrize("value", [b"", b"\xff", b"{", b"[]", b"because I say so", b'{"reason": 5}'])
def test_a_hold_that_cannot_be_read_holds(store: Store, consul: RawKV, value: bytes) -> None:
    seed(consul, names(compute=1))
    consul.put("upgrade/hold/host/compute1", value)
    assert states(make_pass(store, PassRequest(version="2", rules=ONE_BY_ONE))) == {"compute1": "held"}
    assert not ask_gate(store, {"compute1": "compute"})["compute1"].value


@pytest.mark.parametrize("value", [b"\xff", b"2.0\r1"])
def test_a_current_version_that_is_no_version_stops_a_rollout(store: Store, consul: RawKV, value: bytes) -> None:
    seed(consul, names(compute=1))
    consul.put("current_version", value)
    with pytest.raises(UpgradeError, match="consul kv put current_version"):
        make_pass(store, PassRequest(version="2", rules=ONE_BY_ONE))
    assert consul.get("current_version") == value


@pytest.mark.parametrize("value", [b"", b" \n"])
def test_a_current_version_that_says_nothing_is_none(store: Store, consul: RawKV, value: bytes) -> None:
    seed(consul, names(compute=1))
    consul.put("current_version", value)
    make_pass(store, PassRequest(version="2", rules=ONE_BY_ONE))
    assert consul.get("current_version") == b"2"
    assert history(consul)[0]["from"] == "1"


def test_white_space_that_old_tools_left_is_no_other_version(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=1), current="1\n", gates={"host/compute1": "True"})
    make_pass(store, PassRequest(version="1", rules=UNLIMITED))
    assert consul.get(f"{GATES}/host/compute1") == b"True"
    assert consul.get("current_version") == b"1\n"


def test_gates_that_cannot_be_read_do_not_keep_a_rollout_from_beginning(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=2), gates={"host/compute1": "maybe"})
    consul.put(f"{GATES}/role/compute", b"\xff")
    make_pass(store, PassRequest(version="2", rules=ONE_BY_ONE))
    assert gates(consul) == {"global": "False", "host/compute1": "True"}
