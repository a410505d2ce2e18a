# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lookup enable_puppet: who decides, every option, and that trouble is an error and never a yes."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import ConsulClient, KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import ask_gate as ask_store
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from convoy_node.node.connection import Connection
from convoy_node.node.consul import Consul as NodeConsul
from convoy_node.node.consul import ConsulKey
from convoy_node.node.gate import NodeKeys, read_keys
from devkit.agent import Agent
from devkit.kv import RawKV
from integration.support.fleets.fleet import GATES, names
from integration.support.runs.playbook import Runner, ask


def put_gates(consul: RawKV, **gates: str) -> None:
    """Set gates: ``host_compute1="True"`` is host/compute1."""
    consul.load((f"{GATES}/{name.replace('_', '/')}", value) for name, value in gates.items())


def test_host_then_role_then_global_decides_and_a_hold_closes(run: Runner, consul: RawKV) -> None:
    put_gates(consul, host_compute1="True", host_compute2="False", role_web="True", role_compute="2.10")
    put_gates(consul, **{"global": "False"})
    consul.put("current_version", "2.10")
    consul.put("upgrade/hold/host/web2", '{"reason": "disk", "by": "ann"}')
    consul.put("upgrade/hold/role/held", "")
    before = consul.tree()
    played = run(
        [
            ask("compute1", "compute2", "compute3", "web1", "web2", "db1", "held1"),
            ask("compute3", "db1", "db2", role="db"),
            ask("compute3", version="2.8"),
            ask("dc1-compute", role_pattern="-([a-z]+)"),
            ask("compute1", "compute3", "web1", "web2", "held1", "db1", detail=True),
            {"ansible.builtin.debug": {"msg": "{{ lookup('convoy.upgrade.enable_puppet', 'compute1') | type_debug }}"}},
            ask(),
        ]
    )
    assert [each["msg"] for each in played[:4]] == [
        [True, False, True, True, False, False, False], [False, False, False], [False], [True],
    ]  # fmt: skip
    details = played[4]["msg"]
    assert details[0] == {
        "value": True, "scope": "host", "key": f"{GATES}/host/compute1", "hold": False,
        "reason": f"open: {GATES}/host/compute1 is True", "version": "2.10", "held": None, "pending": False,
        "started": None,
    }  # fmt: skip
    assert [(each["value"], each["scope"], each["hold"]) for each in details] == [
        (True, "host", False), (True, "role", False), (True, "role", False), (False, "host", True), (False, "role", True),
        (False, "global", False),
    ]  # fmt: skip
    assert details[3]["key"] == "upgrade/hold/host/web2"
    assert (
        details[3]["reason"]
        == "closed: held by ann: disk (ends with ansible-playbook convoy.upgrade.unhold -e host=web2)"
    )
    assert played[5]["msg"] == "bool"
    assert played[6]["msg"] == []
    assert consul.tree() == before


@pytest.mark.thorough
def test_where_nothing_is_set_the_caller_says_what_it_is(run: Runner, consul: RawKV) -> None:
    put_gates(consul, host_compute10="False")
    played = run([ask("compute1"), ask("compute1", default=False), ask("compute1", default=False, detail=True)])
    assert [played[0]["msg"], played[1]["msg"]] == [[True], [False]]
    assert played[2]["msg"] == [
        {
            "value": False,
            "scope": "default",
            "key": None,
            "hold": False,
            "reason": "closed: no gate is set for compute1",
            "version": None,
            "held": None,
            "pending": False,
            "started": None,
        }
    ]


@pytest.mark.thorough
def test_trouble_is_an_error(run: Runner, consul: RawKV) -> None:
    put_gates(consul, host_compute1="Flase", role_compute="True")
    tasks = [
        (ask("compute1"), f"The gate {GATES}/host/compute1 holds 'Flase', which is neither True, False nor a version"),
        (ask("compute1", host="127.0.0.1", port=1, timeout=0.1), "Consul at http://127.0.0.1:1 can't be reached"),
        (ask("10.0.0.1"), "No role for 10.0.0.1"),
        (ask("compute1", role_pattern="compute"), "has no group; the first group is the role"),
        (ask("a/b", role="compute"), "the host 'a/b' has a '/'"),
        (ask("compute1", role="a/b"), "the role 'a/b' has a '/'"),
        (ask("compute1", detial=True), "detial"),
        (ask("compute2"), None),
    ]
    played = run([task for task, _message in tasks])
    for result, (task, message) in zip(played[:-2], tasks[:-2], strict=True):
        assert result["failed"], task
        assert message is not None and message in result["msg"], task
    assert played[-1]["msg"] == [True]


@pytest.mark.thorough
def test_variables_say_how_consul_is_reached(run: Runner, consul: RawKV) -> None:
    consul.put(f"clouds/east/{GATES}/global", "False")
    address = run.environ["CONSUL_HTTP_ADDR"]
    variables = {
        "upgrade_consul_host": "127.0.0.1",
        "upgrade_consul_port": int(address.rpartition(":")[2]),
        "upgrade_consul_scheme": "http",
        "upgrade_consul_validate_certs": True,
        "upgrade_consul_datacenter": "dc1",
        "upgrade_consul_timeout": 5,
        "upgrade_consul_kv_prefix": "clouds/east",
    }
    wrong = {"CONSUL_HTTP_ADDR": "127.0.0.1:1"}
    tasks = [
        ask("compute1"),
        ask("compute1", kv_prefix=""),
        {**ask("compute1"), "vars": {"upgrade_consul_datacenter": "dc9", "upgrade_consul_timeout": 0.5}},
    ]
    played = run(tasks, environ=wrong, play={"vars": variables})
    assert [played[0]["msg"], played[1]["msg"]] == [[False], [True]]
    assert "No path to datacenter" in played[2]["msg"]


@pytest.mark.one_release
@pytest.mark.parametrize("count", [1, 5, 500])
def test_one_request_is_enough_for_any_number_of_hosts(store: Store, consul: RawKV, count: int) -> None:
    hosts = names(compute=count)
    put_gates(consul, **{f"host_{host}": "True" for host in hosts}, **{"global": "False"})
    consul.put("upgrade/hold/", "")
    before = store.client.requests
    answers = ask_store(store, {**hosts, "compute9999": "compute"})
    assert store.client.requests - before == 1
    assert [answer.value for answer in answers.values()] == [True] * count + [False]


@pytest.mark.one_release
@pytest.mark.parametrize("has_begun", [True, False])
def test_a_host_is_not_sent_the_holds_of_others(
    has_begun: bool, store: Store, agent: Agent, consul: RawKV, monkeypatch: pytest.MonkeyPatch
) -> None:
    consul.load((f"upgrade/hold/host/web{number}", "{}") for number in range(1, 30))
    if has_begun:
        consul.put("upgrade/hold/", "")
    seen: list[str] = []
    read, results_of = ConsulClient.read, NodeConsul._results

    def note_entries(client: ConsulClient, *arguments: Any, **more: Any) -> list[KVEntry]:
        found = read(client, *arguments, **more)
        seen.extend(one.key for one in found)
        return found

    def note_results(client: NodeConsul, found: Any) -> dict[str, ConsulKey]:
        seen.extend(results_of(client, found))
        return results_of(client, found)

    monkeypatch.setattr(ConsulClient, "read", note_entries)
    monkeypatch.setattr(NodeConsul, "_results", note_results)
    assert not ask_store(store, {"web1": "web"})["web1"].value
    mine = read_keys(NodeConsul(Connection(port=agent.http_port)), NodeKeys("web1", "web"), has_token=False)
    assert "upgrade/hold/host/web1" in mine
    assert ("upgrade/hold/" in mine) == has_begun
    # A read of a key also returns those that only begin like it.
    assert not {one for one in seen if one.startswith("upgrade/hold/host/") and "/web1" not in one}


@pytest.mark.one_release
def test_a_host_whose_name_begins_another_is_not_that_other(store: Store, consul: RawKV) -> None:
    put_gates(consul, host_compute10="True", role_compute10="True")
    consul.put("upgrade/hold/host/compute1x", "")
    consul.put("upgrade/hold/global-notes", "")
    answers = ask_store(store, {"compute1": "compute", "compute": "compute1"}, default=False)
    assert [answer.scope for answer in answers.values()] == ["default", "default"]
    assert not any(answer.value for answer in answers.values())


@pytest.mark.one_release
def test_a_hold_on_everything_closes_all(store: Store, consul: RawKV) -> None:
    put_gates(consul, host_compute1="True")
    consul.put("upgrade/hold/global", "maintenance")
    answer = ask_store(store, {"compute1": "compute"})["compute1"]
    assert (answer.value, answer.scope, answer.hold) == (False, "global", True)
    assert "maintenance" in answer.reason


@pytest.mark.one_release
@pytest.mark.parametrize(
    ("value", "is_open"),
    [
        (b"True", True), (b"true", True), (b"TRUE", True), (b" True\n", True),
        (b"False", False), (b"false", False), (b"FALSE", False),
        (b"2.10", True), (b"2.1", False), (b"v2.10", False), (b"2.10-rc 1", False),
        (b"", None), (b" ", None), (b"Flase", None), (b"yes", None), (b"null", None), (b'"true"', None), (b"{}", None),
        (b'{"enabled": 1}', None), (b"\xff\xfe", None),
    ],
)  # fmt: skip
def test_gate_values_found_in_the_wild(store: Store, consul: RawKV, value: bytes, is_open: bool | None) -> None:
    consul.put("current_version", "2.10")
    consul.put(f"{GATES}/role/compute", value)
    if is_open is not None:
        assert ask_store(store, {"compute1": "compute"})["compute1"].value is is_open
        return
    with pytest.raises(UpgradeError) as caught:
        ask_store(store, {"compute1": "compute"})
    assert caught.value.code == "unreadable_gate"
    assert f"The gate {GATES}/role/compute holds" in caught.value.message


@pytest.mark.one_release
@pytest.mark.parametrize("version", ["2.10", "2.10-rc1", "v2 final", "icehouse", "2.10+git.1~a"])
def test_a_gate_with_a_version_is_open_while_it_is_the_current_one(store: Store, consul: RawKV, version: str) -> None:
    consul.put("current_version", version)
    put_gates(consul, **{"global": version})
    assert ask_store(store, {"compute1": "compute"})["compute1"].value
    consul.put("current_version", "3")
    if version == "icehouse":
        with pytest.raises(UpgradeError, match="holds 'icehouse', which is neither True, False nor a version"):
            ask_store(store, {"compute1": "compute"})
    else:
        assert not ask_store(store, {"compute1": "compute"})["compute1"].value


def test_a_consul_that_cannot_be_reached_is_an_answer_for_who_takes_it_for_one(run: Runner) -> None:
    nowhere = {"host": "127.0.0.1", "port": 1, "timeout": 0.1}
    played = run(
        [
            ask("compute1", "compute2", unreachable="closed", **nowhere),
            ask("compute1", unreachable="closed", detail=True, **nowhere),
            ask("compute1", unreachable="closed", default=True, version="2", **nowhere),
            ask("compute1", unreachable="fail", **nowhere),
        ]
    )
    assert played[0]["msg"] == [False, False]
    (detail,) = played[1]["msg"]
    assert detail.pop("reason").startswith("closed: Consul at http://127.0.0.1:1 can't be reached: ")
    assert detail == {
        "value": False,
        "scope": "unreachable",
        "key": None,
        "hold": False,
        "version": None,
        "held": None,
        "pending": False,
        "started": None,
    }
    assert played[2]["msg"] == [False]
    assert played[3]["failed"]
    # ansible-core 2.19 and later print the causes of an error too; the sentence is there once all the same.
    assert played[3]["msg"].count("can't be reached") == 1


@pytest.mark.thorough
def test_all_other_trouble_stays_an_error(run: Runner, consul: RawKV) -> None:
    put_gates(consul, host_compute1="Flase")
    played = run(
        [
            ask("compute1", unreachable="closed"),
            ask("compute1", unreachable="closed", scheme="https"),
            ask("no-role", unreachable="closed"),
        ]
    )
    assert [task["failed"] for task in played] == [True, True, True]
    assert f"{GATES}/host/compute1" in played[0]["msg"]
    assert "No TLS connection" in played[1]["msg"]


@pytest.mark.thorough
def test_the_version_of_the_fleet_comes_with_the_detail(run: Runner, consul: RawKV) -> None:
    assert run([ask("compute1", detail=True)])[0]["msg"][0]["version"] is None
    consul.put("current_version", " 2.10\n")
    assert run([ask("compute1", detail=True, version="2.8")])[0]["msg"][0]["version"] == "2.10"


@pytest.mark.thorough
def test_variables_that_are_templates_are_filled_in(run: Runner, consul: RawKV, tmp_path: Path) -> None:
    put_gates(consul, host_compute1="False")
    (tmp_path / "port").write_text(f"{urlsplit(consul.url).port}\n")
    given = {
        "upgrade_consul_host": "{{ '127.0.0' ~ '.1' }}",
        "upgrade_consul_port": f"{{{{ lookup('ansible.builtin.file', '{tmp_path}/port') | int }}}}",
        "upgrade_consul_kv_prefix": "{{ nothing | default('') }}",
    }
    played = run([ask("compute1", "compute2")], play={"vars": given}, environ={"CONSUL_HTTP_ADDR": "127.0.0.1:1"})
    assert played[0]["msg"] == [False, True]
