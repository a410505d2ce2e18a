# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_enable_puppet: check, apply, repeat, reset, and what it refuses."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.gate import set_gate
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates
from integration.support.runs.playbook import Runner, gate

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release

SETTINGS = [
    gate(scope="global", value=False),
    gate(scope="role", name="compute", value="2.10"),
    gate(scope="host", name="compute7", value=True),
    gate(scope="host", name="compute8", state="absent"),
]
CHANGES = [
    {"key": "config_state/enable_puppet/global", "before": "true", "after": "False"},
    {"key": "config_state/enable_puppet/role/compute", "before": None, "after": "2.10"},
    {"key": "config_state/enable_puppet/host/compute7", "before": "false", "after": "True"},
    {"key": "config_state/enable_puppet/host/compute8", "before": "2.8", "after": None},
]
OLD = {"global": "true", "host/compute7": "false", "host/compute8": "2.8", "host/compute80": "True"}


def put_old(consul: RawKV) -> None:
    consul.load(
        [("current_version", "2.10"), *((f"config_state/enable_puppet/{name}", text) for name, text in OLD.items())]
    )


@pytest.mark.thorough
def test_check_then_apply_then_repeat(run: Runner, consul: RawKV) -> None:
    put_old(consul)
    before = consul.tree()
    shown = run(SETTINGS, check=True, diff=True)
    assert consul.tree() == before
    done = run([*SETTINGS, *SETTINGS], diff=True)
    for check, real, again, change in zip(shown, done[:4], done[4:], CHANGES, strict=True):
        assert check["changes"] == real["changes"] == [change]
        assert check["diff"] == real["diff"]
        assert check["changed"] and real["changed"]
        assert (again["changed"], again["changes"]) == (False, [])
    key = "config_state/enable_puppet/host/compute7"
    assert (done[2]["diff"]["before"], done[2]["diff"]["after"]) == (f"{key} = false\n", f"{key} = True\n")
    assert gates(consul) == {
        "global": "False",
        "role/compute": "2.10",
        "host/compute7": "True",
        "host/compute80": "True",
    }
    assert consul.get("current_version") == b"2.10"


def test_reset_leaves_one_closed_gate(run: Runner, consul: RawKV) -> None:
    put_old(consul)
    consul.put("config_state/enable_puppet/host/odd", b"\xff")
    consul.put("config_state/enable_puppetry", "not a gate")
    before = consul.tree()
    (shown,) = run([gate(state="reset")], check=True)
    assert consul.tree() == before
    done, again = run([gate(state="reset"), gate(state="reset")])
    assert shown["changes"] == done["changes"]
    assert [change["key"].rpartition("/")[2] for change in done["changes"]] == [
        "compute7", "compute8", "compute80", "odd", "global",
    ]  # fmt: skip
    assert not again["changed"]
    assert gates(consul) == {"global": "False"}
    assert consul.get("config_state/enable_puppetry") == b"not a gate"


def test_it_warns_of_a_name_that_no_host_has(run: Runner, consul: RawKV) -> None:
    consul.put("running/versions/2.9/compute7", "1700000000")
    unknown, role, host, removed = run(
        [
            gate(scope="role", name="copmute", value=False),
            gate(scope="role", name="compute", value=False),
            gate(scope="host", name="compute7", value=False),
            gate(scope="role", name="copmute", state="absent"),
        ]
    )
    (warning,) = unknown["warnings"]
    assert "no host of this role has reported: 'copmute'; did you mean 'compute'?" in warning
    assert unknown["changed"]
    assert not role.get("warnings") and not host.get("warnings") and not removed.get("warnings")


def test_what_it_refuses(run: Runner, consul: RawKV) -> None:
    put_old(consul)
    before = consul.tree()
    tasks = [
        (gate(scope="host", name="compute7", value="Flase"), "value: 'Flase' is neither true, false nor a version"),
        (gate(scope="host", name="a/b", value=True), "name: the host 'a/b' has a '/'"),
        (gate(scope="role", value=True), "name"),
        (gate(scope="host", name="compute7"), "state is present but all of the following are missing: value"),
        (gate(state="absent"), "state is absent but all of the following are missing: scope"),
        (gate(scope="global", name="x", value=True), "name: 'x' does not go with scope: global, which has one gate"),
        (gate(scope="global", value=True, state="absent"), "value: 'True' goes with state: present, not with absent"),
        (gate(scope="global", state="reset"), "scope: 'global' does not go with state: reset, which wipes all gates"),
        (gate(scope="everywhere", value=True), "value of scope must be one of: global, role, host, got: everywhere"),
    ]
    played = run([task for task, _message in tasks])
    for result, (task, message) in zip(played, tasks, strict=True):
        assert result["failed"], task
        assert message in result["msg"], task
    assert [played[0]["failure"]["code"], played[1]["failure"]["code"]] == ["bad_gate_value", "bad_name"]
    assert consul.tree() == before


def test_a_version_without_digits_is_taken_if_it_is_the_current_one(store: Store, consul: RawKV) -> None:
    consul.put("current_version", "icehouse")
    set_gate(store, "role", "compute", "icehouse")
    with pytest.raises(UpgradeError, match="value: 'havana' is neither true, false nor a version"):
        set_gate(store, "role", "compute", "havana")
    assert gates(consul) == {"role/compute": "icehouse"}


@pytest.mark.parametrize("written", ["True", "true", "TRUE", " tRue "])
def test_true_and_false_are_written_in_one_way(store: Store, consul: RawKV, written: str) -> None:
    set_gate(store, "global", None, written)
    assert gates(consul) == {"global": "True"}


def test_a_host_is_woken_also_if_its_gate_was_set_to_the_same_before(store: Store, consul: RawKV) -> None:
    woken = set()
    for _time in range(2):
        set_gate(store, "host", "compute1", value=True)
        woken.add(consul.get("upgrade/wake/compute1"))
        # As global_disable does, which wakes no host.
        consul.delete("config_state/enable_puppet/host/compute1")
    assert len(woken) == 2 and None not in woken


def test_a_gate_that_another_process_sets_meanwhile_is_read_again(
    store: Store, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "config_state/enable_puppet/host/compute1"
    write = store.client.write
    others = ["False", "2.8"]

    def write_late(operations: list[dict[str, object]]) -> object:
        if others:
            consul.put(key, others.pop())
        return write(operations)

    monkeypatch.setattr(store.client, "write", write_late)
    (change,) = set_gate(store, "host", "compute1", value=True)
    assert (change.before, change.after) == ("False", "True")
    assert consul.get(key) == b"True"
