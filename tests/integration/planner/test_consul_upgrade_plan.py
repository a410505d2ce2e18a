# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""consul_upgrade_plan: check, apply, repeat, and what each option does to the keys."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._rule_files import rule_input
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store
from ansible_collections.convoy.upgrade.plugins.modules import consul_upgrade_plan as module
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, opened, report_roles, seed
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.playbook import Runner, plan

# The examples of the documentation and the playbooks have this on each release.
pytestmark = pytest.mark.one_release

ONE_BY_ONE = {"rolling_rules": {"global": 1}}
CONTROLLERS_FIRST = {"rolling_rules": {"global": 1, "roles": {"compute": 2}}, "role_order": {"compute": "controller"}}
FLEET = names(controller=2, compute=3)


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what depends on the second in which it was made, and without what only a write has."""
    kept = {name: value for name, value in result.items() if name not in ("invocation", "index", "commit", "began")}
    return json.loads(re.sub(r'\\"since\\": \d+', "", json.dumps(kept)))


def test_check_reports_what_a_call_would_do_and_writes_nothing(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET, gates={"role/compute": "True", "host/compute1": "True"})
    before = consul.tree()
    task = plan(version="2", instructions=CONTROLLERS_FIRST)
    (shown,) = run([task], check=True, diff=True)
    assert consul.tree() == before
    (done,) = run([task], diff=True)
    assert comparable(shown) == comparable(done)
    assert (shown["commit"], done["commit"]) == ("", history(consul)[-1]["commit"])
    assert shown["changed"]
    assert shown["diff"]["before"].splitlines() == [
        "config_state/enable_puppet/host/compute1 = True",
        "config_state/enable_puppet/role/compute = True",
        "current_version = 1",
    ]
    assert [line.partition(" = ")[0] for line in shown["diff"]["after"].splitlines()] == [
        "config_state/enable_puppet/global",
        "config_state/enable_puppet/host/controller1",
        "current_version",
        "upgrade/ledger",
    ]


@pytest.mark.thorough
def test_a_call_that_continues_a_rollout_fails_after_another_one_began(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET)
    (begun,) = run([plan(version="2", instructions=ONE_BY_ONE, fleet=FLEET)])
    continues = plan(version="2", began=begun["began"], fleet=FLEET)
    (continued,) = run([continues])
    assert (continued["failed"], continued["began"]) == (False, begun["began"])
    ledger = json.loads(consul.get("upgrade/ledger") or b"")
    consul.put("upgrade/ledger", json.dumps({**ledger, "since": ledger["since"] + 1}))
    before = consul.tree()
    (refused,) = run([continues])
    assert refused["failure"]["code"] == "overtaken"
    assert consul.tree() == before


def test_a_call_writes_these_keys_and_no_others(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET, gates={"role/compute": "True", "host/compute1": "True"})
    reports = consul.texts("running/")
    seen_before = max(one["ModifyIndex"] for one in json.loads(consul.call("GET", "kv/?recurse")[2]))
    (result,) = run([plan(version="2", instructions=CONTROLLERS_FIRST)])
    begin, opening = history(consul)
    # What wakes the agent of the admitted host; only the write counts.
    wakes = consul.texts("upgrade/wake/")
    assert set(wakes) == {"upgrade/wake/controller1"}
    assert consul.texts("") == {
        **reports,
        **wakes,
        "current_version": "2",
        "config_state/enable_puppet/global": "False",
        "config_state/enable_puppet/host/controller1": "True",
        "upgrade/hold/": "",
        "upgrade/ledger": json.dumps(ledger(consul), sort_keys=True),
        "upgrade/history/1": json.dumps(begin, sort_keys=True),
        "upgrade/history/2": json.dumps(opening, sort_keys=True),
    }
    who, since = ledger(consul)["who"], ledger(consul)["since"]
    stored = {"rolling_rules": {"global": 1, "roles": {"compute": 2}}, "role_order": {"compute": ["controller"]}}
    assert ledger(consul) == {
        "epoch": 2, "version": "2", "previous_version": "1", "state": "running",
        "instructions": stored, "who": who, "since": since, "commit": opening["commit"], "begun_index": seen_before,
        "rollouts": [1],
    }  # fmt: skip
    assert begin | {"commit": ""} == {
        "epoch": 1, "at": since, "who": who, "commit": "", "version": "2", "what": "begin", "from": "1",
        "instructions": stored, "reason": f"{who} asked for 2",
    }  # fmt: skip
    reason = "rolling_rules.global admits 1 of role controller at once"
    assert (opening["what"], opening["hosts"], opening["roles"]) == ("open", {"controller1": reason}, {})
    assert (result["version"], result["previous_version"], result["epoch"]) == ("2", "1", 2)
    assert result["status"] == {
        "upgraded": [], "failed": [], "lost": [], "upgrading": ["controller1"], "held": [],
        "pending": ["compute1", "compute2", "compute3", "controller2"],
    }  # fmt: skip
    assert result["transitions"] == [
        {"host": "controller1", "role": "controller", "from": "pending", "to": "upgrading", "reason": reason}
    ]
    assert result["waves"] == [["controller1"], ["controller2"], ["compute1", "compute2"], ["compute3"]]
    assert result["hosts"]["compute3"] == {
        "role": "compute", "group": None, "state": "pending", "version": "1",
        "reason": "waits for role controller (2 hosts are not upgraded: controller1 can be admitted now, controller2 pending), "
        "as role_order says", "soaking": False, "started": False, "held": False, "holds_itself": False, "begun": None, "origin": None, "done": [], "steps": [],
        "cause": "order", "rule": "role_order.compute", "unadmitted": False, "busy": False, "stage": 0, "blocks": True, "outside": False,
        "services": None, "release": None,
    }  # fmt: skip
    assert (result["complete"], result["done"], result["can_move"]) == (False, False, True)


def test_repeated_it_changes_nothing(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET)
    task = plan(version="2", instructions=CONTROLLERS_FIRST, by="ann@desk")
    first, *repeated = run([task, task, plan(), {**task, "check_mode": True}])
    assert first["changed"]
    for again in repeated:
        assert not again["changed"]
        assert again["transitions"] == []
        assert (again["diff"]["before"], again["diff"]["after"]) == ("", "")
        assert again["waves"][0] == []
    assert len(history(consul)) == ledger(consul)["epoch"] == first["epoch"] == 2
    assert (ledger(consul)["who"], history(consul)[0]["reason"]) == ("ann@desk", "ann@desk asked for 2")


def test_a_role_is_opened_by_one_key_unless_it_is_limited_or_has_a_held_host(run: Runner, consul: RawKV) -> None:
    seed(consul, names(controller=2, compute=3, web=2))
    report_roles(consul, names(controller=2, compute=3, web=2))
    consul.put("upgrade/hold/host/compute2", json.dumps({"reason": "disk", "by": "ann", "at": "today"}))
    (result,) = run(
        [plan(version="2", instructions={"rolling_rules": {"global": "unlimited", "roles": {"controller": 1}}})]
    )
    assert gates(consul) == {
        "global": "False", "host/controller1": "True", "host/compute1": "True", "host/compute3": "True", "role/web": "True",
    }  # fmt: skip
    assert history(consul)[1]["roles"] == {"web": {"hosts": 2, "reason": "nothing limits role web"}}
    assert [one["host"] for one in result["transitions"]] == ["compute1", "compute3", "controller1", "web1", "web2"]
    assert result["status"]["held"] == ["compute2"]
    expected = "held by ann since today: disk (ends with ansible-playbook convoy.upgrade.unhold -e host=compute2)"
    assert result["hosts"]["compute2"]["reason"] == expected


def test_instructions_come_from_a_file_and_inline_and_each_is_reported_with_its_source(
    run: Runner, consul: RawKV, tmp_path: Path
) -> None:
    seed(consul, ["compute1"])
    as_json, as_yaml = tmp_path / "rules.json", tmp_path / "rules.yml"
    as_json.write_text(json.dumps({"rolling_rules": {"global": "1", "fleet": "50%"}}))
    as_yaml.write_text(
        "rolling_rules:\n  fleet: null\n  roles: {compute: 1}\nrole_dependencies: {compute: [controller]}\noptional_names: [controller]\n"
    )
    inline = {"rolling_rules": {"global": "unlimited"}}
    first, refused, second, third = run(
        [
            plan(version="2", instructions_file=str(as_json)),
            plan(instructions_file=str(as_json), instructions=inline),
            plan(instructions_file=str(as_yaml), instructions=inline),
            plan(),
        ]
    )
    assert refused["failure"]["code"] == "conflicting_rules"
    assert f"rolling_rules.global is 'unlimited' in instructions, and 1 in {as_json}." in refused["msg"]
    assert first["sources"] == {"rolling_rules.global": str(as_json), "rolling_rules.fleet": str(as_json)}
    assert second["sources"] == {
        "rolling_rules.global": "instructions",
        "rolling_rules.roles.compute": str(as_yaml),
        "role_order.compute": str(as_yaml),
        "optional_names": str(as_yaml),
    }
    assert third["sources"] == dict.fromkeys(second["sources"], "the ledger")
    assert first["instructions"] == {"rolling_rules": {"global": 1, "fleet": "50%"}}
    assert second["instructions"] == {
        "rolling_rules": {"global": "unlimited", "roles": {"compute": 1}},
        "role_order": {"compute": ["controller"]},
        "optional_names": ["controller"],
    }
    assert ledger(consul)["instructions"] == second["instructions"]


def test_rules_end_by_an_empty_value_and_not_by_being_left_out(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=3))
    rule_input = {**ONE_BY_ONE, "failure_rules": {"fleet": 1}}
    nothing = {**UNLIMITED, "failure_rules": {}}
    begun, left_out, emptied, ended = run(
        [
            plan(version="2", instructions=rule_input),
            plan(version="2", instructions={"failure_rules": {"fleet": 3}}),
            plan(version="2", instructions={}),
            plan(version="2", instructions=nothing),
        ]
    )
    assert begun["instructions"] == rule_input
    for refused, missing in ((left_out, ["rolling_rules"]), (emptied, ["failure_rules", "rolling_rules"])):
        assert refused["failure"]["code"] == "rules_left_out"
        assert sorted(refused["failure"]["details"]["missing"]) == missing
        assert not refused["changed"]
    assert (ended["instructions"], ended["status"]["upgrading"]) == (UNLIMITED, ["compute1", "compute2", "compute3"])


def test_the_default_file_is_read_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_input, "DEFAULT_FILES", (str(tmp_path / "jio-upgrade.json"), str(tmp_path / "other.json")))
    assert rule_input.given_rules(None, None) is None
    (tmp_path / "jio-upgrade.json").write_text('{"rolling_rules": {"global": 3}}')
    assert rule_input.given_rules(None, None) == {"rolling_rules": {"global": 3}}
    assert rule_input.given_rules({"rolling_rules": {"global": 4}}, None) == {"rolling_rules": {"global": 4}}


def test_the_default_file_applies_only_when_a_rollout_begins(
    store: Store, consul: RawKV, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    default = tmp_path / "jio-upgrade.json"
    monkeypatch.setattr(rule_input, "DEFAULT_FILES", (str(default), str(tmp_path / "other.json")))
    seed(consul, names(compute=3))

    def sources_and_rules(**options: Any) -> tuple[set[str], dict[str, Any]]:
        params = {name: spec.get("default") for name, spec in module.SPEC.items()} | {"fleet": None} | options
        found = module.act(
            cast("Any", SimpleNamespace(params=params, check_mode=False, _diff=False, warn=print)), store
        )
        return set(found["sources"].values()), found["instructions"]

    default.write_text('{"rolling_rules": {"global": 1}}')
    assert sources_and_rules(version="2") == ({str(default)}, ONE_BY_ONE)
    default.write_text('{"rolling_rules": {"global": "unlimited"}}')
    assert sources_and_rules(version="2") == ({"the ledger"}, ONE_BY_ONE)
    assert sources_and_rules(version="1", rollback=True)[1] == ONE_BY_ONE
    assert sources_and_rules(version="3", replace="1", instructions_file="")[1] == ONE_BY_ONE
    assert sources_and_rules(version="4", replace="3") == ({str(default)}, UNLIMITED)


def test_role_order_is_added_to_that_of_the_instructions(run: Runner, consul: RawKV) -> None:
    seed(consul, names(controller=1, network=1, compute=1))
    given = {**ONE_BY_ONE, "role_order": {"compute": "network"}}
    more = {"compute": ["controller"], "network": ["controller"]}
    (result,) = run([plan(version="2", instructions=given, role_order=more)])
    assert ledger(consul)["instructions"]["role_order"] == {
        "compute": ["network", "controller"],
        "network": ["controller"],
    }
    assert result["waves"] == [["controller1"], ["network1"], ["compute1"]]


def test_hosts_get_their_roles_from_fleet_or_by_role_pattern_which_is_kept(run: Runner, consul: RawKV) -> None:
    seed(consul, ["dc1-web-a", "dc1-db-a", "oddly.named"])
    fleet = {"oddly.named": "web", "dc1-web-b": "web"}
    first, second = run(
        [plan(version="2", fleet=fleet, role_pattern=r"-(\w+)-", instructions=ONE_BY_ONE), plan(fleet=fleet)]
    )
    roles = {"dc1-db-a": "db", "dc1-web-a": "web", "dc1-web-b": "web", "oddly.named": "web"}
    assert {host: view["role"] for host, view in first["hosts"].items()} == roles
    assert first["hosts"]["dc1-web-b"]["reason"].startswith("never reported; waits for a slot")
    assert first["waves"] == [["dc1-db-a", "dc1-web-a"], ["dc1-web-b"], ["oddly.named"]]
    assert list(second["hosts"]) == list(first["hosts"])
    assert ledger(consul)["role_pattern"] == r"-(\w+)-"
    assert ledger(consul)["members"] == {"db": 1, "web": 3}


@pytest.mark.thorough
def test_limit_takes_hosts_roles_and_groups_and_others_count_under_the_caps(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=2, storage=1, web=1))
    groups = {"rolling_rules": {"fleet": 3}, "group_mappings": {"data": ["comp", "stor"]}}
    host, role, group, several, real = run(
        [
            *(
                {**plan(version="2", instructions=groups, limit=limit), "check_mode": True}
                for limit in (["compute2"], ["compute"], ["data"], ["storage", "compute1"])
            ),
            plan(version="2", instructions=groups, limit=["compute2"]),
        ]
    )
    assert [host["waves"][0], role["waves"][0]] == [["compute2"], ["compute1", "compute2"]]
    assert [group["waves"][0], several["waves"][0]] == [["compute1", "compute2", "storage1"], ["compute1", "storage1"]]
    assert gates(consul) == {"global": "False", "host/compute2": "True"}
    assert opened(history(consul)) == ["compute2"]
    assert real["hosts"]["web1"]["reason"] == "excluded by this run's limit"
    consul.put("running/versions/2/compute2", "1700000001")
    consul.delete("running/versions/1/compute2")
    (rest,) = run([plan(limit=["compute2"])])
    assert (rest["done"], rest["complete"]) == (True, False)


def test_kv_prefix_keeps_everything_below_it(run: Runner, consul: RawKV) -> None:
    seed(consul, FLEET, prefix="clouds/east/")
    seed(consul, FLEET)
    outside = {key: value for key, value in consul.tree().items() if not key.startswith("clouds/")}
    (result,) = run([plan(version="2", instructions=ONE_BY_ONE, kv_prefix="clouds/east/")])
    assert result["status"]["upgrading"] == ["compute1", "controller1"]
    assert {key: value for key, value in consul.tree().items() if not key.startswith("clouds/")} == outside
    assert gates(consul, "clouds/east/") == {"global": "False", "host/compute1": "True", "host/controller1": "True"}
    assert len(history(consul, "clouds/east/")) == 2


def test_since_waits_for_what_comes_after_the_index_and_begins_nothing(run: Runner, consul: RawKV) -> None:
    seed(consul, names(compute=2))
    (first,) = run([plan(version="2", instructions=ONE_BY_ONE)])
    consul.put("running/versions/2/compute1", "1700000001")
    consul.delete("running/versions/1/compute1")
    later, nothing_new, other_version = run(
        [
            plan(since=first["index"], wait_timeout=30),
            plan(since=first["index"] + 1000, wait_timeout=1),
            plan(version="3", since=first["index"]),
        ]
    )
    assert later["status"]["upgraded"] == ["compute1"]
    assert opened(history(consul)) == ["compute1", "compute2"]
    assert not nothing_new["changed"]
    assert other_version["failure"]["code"] == "overtaken"
    assert consul.get("current_version") == b"2"
