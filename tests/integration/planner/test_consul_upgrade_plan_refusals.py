# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_upgrade_plan: what it refuses, with which message, and that it writes nothing then."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files.rule_input import given_rules
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import ledger, names, seed
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, plan

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release

LEDGER = json.dumps({"epoch": 0, "version": "1", "state": "complete"})


@pytest.mark.thorough
def test_the_module_names_what_is_wrong_and_what_to_do(run: Runner, consul: RawKV) -> None:
    seed(consul, names(controller=1, compute=2))
    before = consul.tree()
    tasks = [
        (plan(), "version is not given, and upgrade/ledger has no rollout to continue. Give version"),
        (plan(version="a/b"), "version: the version 'a/b' has a '/', a control character or a space at its ends"),
        (
            plan(version="True"),
            "version: the version can't be 'True', because a gate with that value means open or closed",
        ),
        (
            plan(version="2", instructions=UNLIMITED, limit=["comptue"]),
            "limit: 'comptue' fits no host, role or group of this fleet; did you mean",
        ),
        (plan(version="2", instructions={"rolling_rules": {"global": -1}}), "rolling_rules.global: -1 is not a cap."),
        (plan(version="2", instructions={"failure_rules": {"x": 5}}), "failure_rules.x: unknown key"),
        (
            plan(version="2", instructions={"windows": [{"from": 22, "to": 6}]}),
            "windows[0].from: 22 is not a time of day: give '22:00' in quotes.",
        ),
        (
            plan(version="2", instructions={**UNLIMITED, "stages": [{"roles": ["comptue"], "hosts": 1}]}),
            "stages[0].roles: no host of this fleet has the role or group 'comptue'; did you mean 'compute'?",
        ),
        (
            plan(version="2", instructions={**UNLIMITED, "stages": [{"hosts": ["comptue1"]}]}),
            "stages[0].hosts: comptue1 is not a host of this fleet; did you mean 'compute1'?",
        ),
        (
            plan(version="2", instructions={"stages": [{"name": "canary", "hosts": 1}, {"approve": True}]}),
            "stages[1].approve: True has no effect: 'stage 2' is the last stage",
        ),
        (plan(version="2", instructions={"role_oder": {}}), "role_oder: unknown key; did you mean 'role_order'?"),
        (plan(version="2", role_order={"a": "b", "b": "a"}), "a waits for b waits for a"),
        (plan(version="2", wait="perhaps"), "wait"),
        (plan(version="2", wait=True, wait_timeout="soon"), "wait_timeout"),
    ]
    played = run([task for task, _message in tasks])
    for result, (task, message) in zip(played, tasks, strict=True):
        assert result["failed"], task
        assert message in result["msg"], task
        assert not result["changed"]
    assert played[3]["failure"] == {
        "code": "unknown_limit",
        "message": played[3]["msg"].removeprefix("[unknown_limit] "),
        "details": {"name": "comptue"},
    }
    assert consul.tree() == before


def refusal(store: Store, **request: Any) -> UpgradeError:
    with pytest.raises(UpgradeError) as caught:
        make_pass(store, PassRequest(**{"rules": UNLIMITED, **request}))
    return caught.value


Put = Callable[[RawKV], None]


@pytest.mark.parametrize(
    ("keys", "request_", "code", "message"),
    [
        ({"upgrade/ledger": "{"}, {}, "unreadable_ledger", "The ledger upgrade/ledger can't be read"),
        ({"upgrade/ledger": '{"epoch": "x", "version": "1"}'}, {}, "unreadable_ledger", "epoch is 'x'"),
        ({"upgrade/schema": "2"}, {}, "newer_schema", "Install the release that the other planners use"),
        ({"upgrade/schema": "new"}, {}, "unreadable_schema", "upgrade/schema holds"),
        ({"config_state/enable_puppet/host/compute1": "Flase"}, {"version": "1"}, "unreadable_gate", "holds 'Flase'"),
        ({"running/versions/1/42": "1"}, {}, "unplaced_hosts", "No role for 42"),
        ({"upgrade/hosts/42": "{}"}, {}, "unplaced_hosts", "Name it in fleet (host: role)"),
        (
            {"upgrade/ledger": LEDGER, "current_version": "7"},
            {"version": None},
            "foreign_version",
            "is '7', but the rollout",
        ),
        ({}, {"fleet": {"a/b": "web"}}, "bad_name", "fleet: the host 'a/b'"),
        ({}, {"fleet": {"web1": " web"}}, "bad_name", "fleet.web1: the role ' web'"),
        ({}, {"fleet": {"web1": 5}}, "bad_name", "a role must be text"),
        ({}, {"role_pattern": "("}, "bad_role_pattern", "is not a valid regular expression"),
        ({}, {"role_pattern": "web"}, "bad_role_pattern", "has no group; the first group is the role"),
        ({}, {"rules": {"group_mappings": {"a": "comp", "b": ".*ute"}}}, "bad_instructions", "matched by the group"),
    ],
)
def test_a_pass_refuses_and_leaves_everything_as_it_was(
    store: Store, consul: RawKV, keys: dict[str, str], request_: dict[str, Any], code: str, message: str
) -> None:
    seed(consul, ["compute1", "compute2"])
    consul.load(keys.items())
    before = consul.tree()
    error = refusal(store, **{"version": "2", **request_})
    assert error.code == code
    assert message in error.message
    assert consul.tree() == before


def test_all_unreadable_gates_are_reported_at_once(store: Store, consul: RawKV) -> None:
    seed(consul, names(compute=7), gates={f"host/compute{number}": "maybe" for number in range(1, 8)})
    error = refusal(store, version="1")
    assert len(error.details["keys"]) == 7
    assert error.message.startswith("No host is admitted: ")
    assert error.message.endswith(" And 2 more.")


def test_a_planner_with_fewer_hosts_than_the_rollout_admits_no_host(store: Store, consul: RawKV) -> None:
    fleet = names(compute=3)
    make_pass(store, PassRequest(version="2", rules={"rolling_rules": {"global": 1}}, fleet=fleet))
    before = consul.tree()
    error = refusal(store)
    assert error.code == "fleet_too_small"
    assert "role compute: 0 of its 3 hosts have reported or are named in fleet" in error.message
    assert "give the whole fleet, as the last run did" in error.message
    assert consul.tree() == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b'{"rolling_rules": {"global": 1', "line 1, column"),
        (b"rolling_rules: [unclosed", "can't be used"),
        (b"- a list", "it is not a mapping of names to values"),
        (b'{"rolling_rules": {"global": 1, "global": 2}}', "duplicate key 'global' in one mapping"),
        (b"role_order: {a: b}\nrole_order: {a: c}\n", "duplicate key 'role_order' in one mapping"),
        (b"\xff\xfe", "can't be used"),
    ],
    ids=["missing", "json", "yaml", "list", "twice in json", "twice in yaml", "not utf-8"],
)
def test_a_bad_instructions_file_is_named_with_what_is_wrong_in_it(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "rules"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UpgradeError) as caught:
        given_rules(None, str(path))
    assert caught.value.code == "bad_instructions_file"
    assert caught.value.message.startswith(f"instructions_file: {path} can't be used: ")
    assert message in caught.value.message


def test_a_rule_that_is_wrong_in_a_file_is_reported_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rules"
    path.write_text('{"rolling_rules": {"globl": 1}}')
    with pytest.raises(UpgradeError, match=r"globl: unknown key.*did you mean 'global'.*rules\)$"):
        given_rules(None, str(path))


def test_a_rollout_to_what_a_shell_would_act_on_does_not_begin_and_an_old_one_is_read(
    store: Store, consul: RawKV
) -> None:
    seed(consul, names(compute=2), version="1 beta")
    before = consul.tree()
    with pytest.raises(UpgradeError, match="version: the version '2; reboot' is not safe in a command"):
        make_pass(store, PassRequest("2; reboot", {"rolling_rules": {"global": 1}}))
    assert consul.tree() == before
    assert make_pass(store, PassRequest("2", {"rolling_rules": {"global": 1}})).admissions
    assert ledger(consul)["previous_version"] == "1 beta"
