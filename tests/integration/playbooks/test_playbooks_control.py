# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks with which operators hold, pause, approve, retry and take back."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, write_report
from ansible_collections.convoy.upgrade.plugins.module_utils._passes.planner_pass import PassRequest, make_pass
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands import control
from ansible_collections.convoy.upgrade.plugins.module_utils._state.store import Store, current_user
from devkit.kv import RawKV
from integration.support.fleets.fleet import gates, history, ledger, names, seed
from integration.support.processes.nodes import living_nodes
from integration.support.runs.commands import UNLIMITED
from integration.support.runs.shipped import Shipped, inventory
from thorough import quick

FLEET = names(controller=1, compute=3)
ROLES = {"controller": {"plane": "controlplane"}, "compute": {"plane": "dataplane"}}
RULES = {"rolling_rules": {"global": 1}}
MORE = {"inventory": inventory(FLEET), "upgrade_roles": ROLES}


def upgrade(store: Store, *hosts: str) -> None:
    for host in hosts:
        write_report(store, HostReport(host, "2", "started"))
        write_report(store, HostReport(host, "2", "upgraded"))


def one_line(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.thorough
def test_hold_and_unhold(play: Shipped, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    consul.put("current_version", "2")
    consul.put("config_state/enable_puppet/global", "False")
    write_report(store, HostReport("compute3", "2", "started"))
    held = play("hold", host="compute1, compute2", reason="RAM test", by="ann", **MORE)
    assert held.returncode == 0, held.stdout
    assert "compute1: held by ann since " in held.stdout
    assert set(consul.tree("upgrade/hold/host/")) == {f"upgrade/hold/host/compute{number}" for number in (1, 2)}
    assert play("hold", role="controller", reason="RAM test", **MORE).returncode == 0
    ended = play("unhold", host="compute1", role="controller", **MORE)
    assert ended.returncode == 0, ended.stdout
    assert set(consul.tree("upgrade/hold/")) == {"upgrade/hold/", "upgrade/hold/host/compute2"}
    of_role = play("hold", role="compute", reason="RAM test", **MORE)
    assert "compute3 had begun to upgrade. The current run continues; no further run begins" in one_line(of_role.stdout)
    untargeted = play("hold", reason="RAM test")
    assert untargeted.returncode == 2
    assert "No target is given: give hosts, roles, or everything: true." in one_line(untargeted.stdout)
    assert "-e host=H, -e role=R and -e everything=true." in one_line(untargeted.stdout)


@pytest.mark.thorough
def test_pause_resume_and_abort(play: Shipped, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    paused = play("pause", reason="logins fail", **MORE)
    assert paused.returncode == 0, paused.stdout
    assert "No host is admitted: the rollout is paused by " in paused.stdout
    shown = play("status", host="compute2", **MORE).stdout
    assert f"pause 2 by {current_user()}: logins fail (epoch 3)" in shown
    resumed = play("resume", **MORE)
    assert (resumed.returncode, "No host is admitted" in resumed.stdout) == (0, False)
    aborted = play("abort", reason="enough", **MORE)
    assert "No host is admitted: the rollout was aborted by " in aborted.stdout
    assert gates(consul) == {"global": "False", "host/controller1": "False", "host/compute1": "False"}
    assert play("pause", **MORE).returncode == 2
    # Without upgrade_notify, nothing is done for a hook.
    assert re.search(r"TASK \[Start the notifier\] \**\nskipping: ", paused.stdout)
    assert consul.get("upgrade/notified") is None


@pytest.mark.thorough
def test_retry_and_approve(play: Shipped, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET)
    rules = {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "approve": True}]}
    make_pass(store, PassRequest("2", rules, fleet=FLEET))
    write_report(store, HostReport("compute1", "2", "started"))
    write_report(store, HostReport("compute1", "2", "failed", error="no disk"))
    retried = play("retry", host="compute1", reason="fixed", **MORE)
    assert retried.returncode == 0, retried.stdout
    assert "fixed" in [event.get("reason") for event in history(consul) if event["what"] == "retry"]
    refused = play("forget", host="compute1", **MORE)
    assert refused.returncode == 0, refused.stdout
    assert "compute1 is forgotten." in refused.stdout
    make_pass(store, PassRequest(fleet=FLEET))
    upgrade(store, "controller1", "compute1")
    make_pass(store, PassRequest(fleet=FLEET))
    assert "Stage canary; it waits for approval" in play("status", **MORE).stdout
    approved = play("approve", stage="canary", reason="fine", **MORE)
    assert approved.returncode == 0, approved.stdout
    assert [one.host for one in make_pass(store, PassRequest(fleet=FLEET)).admissions] == ["compute2", "compute3"]


@pytest.mark.one_release
@pytest.mark.parametrize(
    ("name", "given"),
    quick(
        1,
        [
            ("hold", {"host": "", "everything": True, "reason": "RAM test"}),
            ("hold", {"role": " ", "host": "compute1", "reason": "RAM test"}),
            ("unhold", {"host": ",", "everything": True}),
            ("unhold", {"host": "compute1", "role": ""}),
            ("retry", {"host": " , "}),
            ("forget", {"host": " , "}),
            ("approve", {"stage": ""}),
            ("status", {"host": ""}),
        ],
    ),
)
def test_a_name_that_is_given_and_empty_is_refused(
    play: Shipped, store: Store, consul: RawKV, name: str, given: dict[str, Any]
) -> None:
    seed(consul, FLEET)
    make_pass(
        store, PassRequest("2", {**UNLIMITED, "stages": [{"name": "canary", "hosts": 1, "approve": True}]}, fleet=FLEET)
    )
    upgrade(store, "controller1")
    write_report(store, HostReport("compute1", "2", "failed", error="no disk"))
    before = consul.tree()
    refused = play(name, **given, **MORE)
    which = next(one for one, value in given.items() if isinstance(value, str) and not value.strip(" ,"))
    assert refused.returncode == 5, refused.stdout
    assert f"-e {which}=NAME" in refused.stdout
    assert (
        f"{which} is empty, which usually means an unset variable. Nothing was done: give a name, or leave {which} out."
        in (one_line(refused.stdout))
    )
    assert consul.tree() == before


@pytest.mark.thorough
def test_rollback_goes_to_the_end(play: Shipped, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    upgrade(store, "controller1", "compute1")
    write_report(store, HostReport("compute2", "2", "started"))
    write_report(store, HostReport("compute2", "2", "failed", error="no disk"))
    # As if the playbook had been cut short right after its first write: the same command goes on.
    control.roll_back(store, control.Command("logins fail", fleet=FLEET))
    with living_nodes(store.settings, {host: FLEET[host] for host in ("controller1", "compute1", "compute2")}, "1"):
        back = play("rollback", reason="logins fail", **MORE)
    assert back.returncode == 0, back.stdout
    assert (ledger(consul)["state"], ledger(consul)["rollback"], consul.get("current_version")) == (
        "complete",
        True,
        b"1",
    )
    assert set(consul.tree("running/versions/1/")) == {f"running/versions/1/{host}" for host in FLEET}
    assert gates(consul) == {"global": "True"}
    # As after a failure of what comes last: the same command goes on, and turns nothing round.
    before = consul.tree()
    again = play("rollback", reason="logins fail", **MORE)
    assert again.returncode == 0, again.stdout
    assert "The rollback to 1 is complete already." in one_line(again.stdout)
    assert consul.tree() == before
    shown = play("status", host="compute2", **MORE).stdout
    assert f"begin 1 by {current_user()}: the fleet is rolled back: logins fail" in shown


@pytest.mark.thorough
def test_rollback_shows_its_own_plan_before_it_begins(play: Shipped, store: Store, consul: RawKV) -> None:
    fleet = names(controller=1, compute=5)
    more = {**MORE, "inventory": inventory(fleet)}
    seed(consul, fleet, "1")
    stages = [{"name": "canary", "hosts": 1, "roles": ["compute"]}]
    rules = {"rolling_rules": {"global": 1}, "failure_rules": {"fleet": 1}, "stages": stages}
    make_pass(store, PassRequest("2", rules, fleet=fleet))
    for host in ("compute1", "controller1", "compute2"):
        upgrade(store, host)
        make_pass(store, PassRequest(fleet=fleet))
    write_report(store, HostReport("compute3", "2", "started"))
    write_report(store, HostReport("compute3", "2", "failed", error="no disk"))
    before = consul.tree()
    # These are for rollouts that begin; this one keeps the rules of the one that it takes back.
    (play.folder / "group_vars").mkdir()
    (play.folder / "group_vars" / "all.yml").write_text("instructions: {rolling_rules: {global: 9}}")
    dry = play("rollback", "--check", reason="slow", **more)
    assert dry.returncode == 0, dry.stdout
    assert consul.tree() == before
    head, waves = dry.stdout[dry.stdout.index("Plan: to 1 from 2") :].split("\n\n")[:2]
    assert "  failure_rules.fleet: 1 (from instructions)" in head.splitlines()
    control.roll_back(store, control.Command("slow", fleet=fleet))
    order = {"compute": ["controller"]}
    real = make_pass(store, PassRequest("1", fleet=fleet, role_order=order), dry=True).plan
    assert real.waves == (("compute2",), ("controller1",), ("compute1",), ("compute3",))
    assert (real.blocker, real.stage) == (None, "rest")
    order = [line.split()[-1] for line in waves.splitlines()[1:5]]
    assert order == ["compute2", "controller1", "compute1", "compute3"], waves
    assert "No host is admitted" not in dry.stdout
    assert "Stage rest" in dry.stdout


@pytest.mark.one_release
def test_a_version_that_is_a_number_is_refused_before_the_rollout_is_turned_round(
    play: Shipped, store: Store, consul: RawKV
) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    before = consul.tree()
    refused = play("rollback", version=2.10, **MORE)
    assert refused.returncode != 0
    assert "version: 2.1 is not text but a number" in one_line(refused.stdout)
    assert consul.tree() == before


@pytest.mark.thorough
def test_rollback_begins_again_after_an_abort(play: Shipped, store: Store, consul: RawKV) -> None:
    seed(consul, FLEET, "1")
    make_pass(store, PassRequest("2", RULES, fleet=FLEET))
    upgrade(store, "controller1")
    control.roll_back(store, control.Command("logins fail", fleet=FLEET))
    control.abort(store, control.Command("wait", fleet=FLEET))
    before = consul.tree()
    dry = play("rollback", "--check", **MORE)
    assert (dry.returncode, "Plan: to 1 from 2" in dry.stdout) == (0, True), dry.stdout
    assert consul.tree() == before
    with living_nodes(store.settings, {"controller1": "controller"}, "1"):
        back = play("rollback", by="ann", reason="logins fail", **MORE)
    assert back.returncode == 0, back.stdout
    assert "It rolls the fleet back: logins fail" in back.stdout
    assert (ledger(consul)["version"], ledger(consul)["state"], ledger(consul)["who"]) == ("1", "complete", "ann")
