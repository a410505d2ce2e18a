# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags of a part of the upgrade that can't run alone."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.partial_tags import (
    OutsideTags,
    hosts_outside_tags,
    post_upgrade_outside_tags,
    refuse_tags_of_pull,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import RunScope
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import STEPS, tags_of

NAMES = [
    *("validate/nginx", "prepare/nginx", "upgrade/nginx@2.4", "upgrade/nginx@2.6", "stop/nginx", "stop/app"),
    *("upgrade/nginx", "upgrade/app", "start/nginx", "start/app", "verify/nginx", "post_upgrade/nginx"),
]
DRAINED = ["drain/app", "undrain/app"]
OWN_TAGS = {"upgrade/app": ["slow"], "verify/nginx": ["long"], "undrain/app": ["put_back"]}


def task_group(name: str) -> dict[str, object]:
    step, _slash, rest = name.partition("/")
    service, _at, checkpoint = rest.partition("@")
    own = OWN_TAGS.get(name, [])
    return {
        "name": name,
        "step": step,
        "service": service,
        "checkpoint": checkpoint,
        "once": False,
        "tags": [*tags_of(step), service, *own],
    }


def scope_of(*pushed: str, pulled: str = "", begun: str = "") -> RunScope:
    """Return a run with these hosts in the data plane."""
    plays = {"dataplane_first": (), "controlplane": (), "dataplane": pushed}
    validate = tuple(host for host in pushed if host not in begun.split())
    return RunScope(plays, (), validate, {**plays, "dataplane": (*pushed, *pulled.split())})


def refusal(only: str, skip: str = "", done: str = "", checkpoints: tuple[str, ...] = ()) -> str:
    names = NAMES + DRAINED * ("drain" in only + skip + done)
    groups = sorted(map(task_group, names), key=lambda one: [*STEPS, "post_upgrade"].index(str(one["step"])))
    plan = {"hosts": {"web1": {"role": "web", "done": done.split(), "state": "upgrading" if done else "pending"}}}
    try:
        hosts_outside_tags(
            plan,
            {"roles": {"web": {"task_groups": groups}}},
            scope_of("web1", begun="web1" if done else ""),
            {"web1": checkpoints},
            only.split(","),
            skip.split(",") if skip else (),
        )
    except UpgradeError as error:
        assert error.code in ("partial_tags", "no_such_tag")
        return error.message
    return ""


DOWN = "stop/nginx stop/app upgrade/nginx upgrade/app start/nginx start/app"


@pytest.mark.parametrize(
    ("only", "skip", "done"),
    [
        ("all", "", ""),
        ("validate", "", ""),
        ("prepare", "", ""),
        ("step1", "", ""),
        ("prepare,stop,upgrade,start", "", ""),
        ("stop,upgrade,start", "", "prepare/nginx"),
        ("stop,upgrade,start,verify", "", "prepare/nginx"),
        ("verify", "", f"prepare/nginx {DOWN}"),
        ("post_upgrade", "", f"prepare/nginx {DOWN} verify/nginx"),
        ("all", "verify", ""),
        ("all", "prepare,stop", DOWN),
        ("all", "verify,step5", "drain/app"),
        ("all", "may_stop,drain,undrain", ""),
        ("all", "undrain", "undrain/app"),
        ("all", "slow", "upgrade/app"),
        # A task of another step may be left out.
        ("all", "long", ""),
    ],
)
def test_tags_that_leave_no_service_down_are_allowed(only: str, skip: str, done: str) -> None:
    assert refusal(only, skip, done) == ""


@pytest.mark.parametrize(
    ("only", "skip", "done", "reason"),
    [
        ("stop", "", "", "a later run would run prepare/nginx after stop/nginx"),
        ("upgrade", "", "prepare/nginx", "a later run would run stop/nginx after upgrade/nginx"),
        (
            "stop",
            "",
            "prepare/nginx",
            "upgrade/nginx would be left to a later run, and services may be down until then",
        ),
        ("prepare,stop,upgrade", "", "", "start/nginx would be left to a later run"),
        ("prepare", "", "stop/nginx", "stop/nginx would be left to a later run"),
        ("prepare,may_stop,drain", "", "", "stop/nginx would be left to a later run, and the host would stay drained"),
        ("drain", "", "prepare/nginx", "stop/nginx would be left to a later run, and the host would stay drained"),
        # Until a service is started, it is stopped again.
        (
            "start",
            "",
            "prepare/nginx stop/nginx stop/app upgrade/nginx upgrade/app",
            "a later run would run stop/nginx after start/nginx",
        ),
        ("all", "stop", "stop/nginx stop/app", "stop/nginx would count as done without being run"),
        ("nginx", "", "", "a later run would run stop/app after upgrade/nginx"),
        (
            "slow",
            "",
            "prepare/nginx stop/nginx stop/app upgrade/nginx start/nginx start/app",
            "upgrade/app would be left to a later run",
        ),
        ("verify", "", "", "a later run would run prepare/nginx after verify/nginx"),
        ("all", "start", "", "start/nginx would count as done without being run"),
        # Otherwise packages would be replaced under a service that runs.
        ("all", "stop", "", "stop/nginx would count as done without being run"),
        ("all", "undrain", "", "undrain/app would count as done without being run, and the host would stay drained"),
        ("all", "undrain", "drain/app", "undrain/app would count as done without being run"),
        ("all", "app", "", "stop/app would count as done without being run"),
        # A tag of the service itself, on one of the tasks.
        ("all", "slow", "", "upgrade/app would count as done without all its tasks"),
        (
            "all",
            "put_back",
            "drain/app",
            "undrain/app would count as done without all its tasks, and the host would stay drained",
        ),
    ],
)
def test_other_tags_are_refused(only: str, skip: str, done: str, reason: str) -> None:
    assert f"these tags select a part of the upgrade that can't run alone. web1: {reason}" in refusal(only, skip, done)


def test_only_checkpoints_on_the_path_count() -> None:
    done = f"prepare/nginx {DOWN}"
    assert refusal("verify", done=done) == ""
    assert "upgrade/nginx@2.6 after verify/nginx" in refusal("verify", done=done, checkpoints=("nginx@2.6",))


def test_the_message_quotes_the_tags() -> None:
    assert refusal("stop,prepare").startswith("--tags prepare,stop: ")
    assert refusal("all", "start,verify").startswith("--skip-tags start,verify: ")


def test_hosts_that_the_tags_would_run_too_early_are_left_out() -> None:
    groups = [task_group(f"{step}/nginx") for step in STEPS]
    done = ["prepare/nginx", "may_stop/nginx", "drain/nginx", "stop/nginx", "upgrade/nginx", "start/nginx"]
    plan = {
        "hosts": {
            "web1": {"role": "web", "done": done, "state": "upgrading"},
            "web2": {"role": "web", "done": [], "state": "pending"},
        }
    }
    composition = {"roles": {"web": {"task_groups": groups}}}
    scope = scope_of("web1", "web2", begun="web1")
    early = hosts_outside_tags(plan, composition, scope, {}, ["verify"], [])
    assert early == OutsideTags({"web2": "a later run would run prepare/nginx after verify/nginx"})
    assert early.narrow(scope) == scope_of("web1", begun="web1")
    assert early.lines() == [
        "Not in this run, because of its tags: web2; a later run would run prepare/nginx after verify/nginx."
    ]
    with pytest.raises(UpgradeError) as refused:
        hosts_outside_tags(plan, composition, scope_of("web2"), {}, ["verify"], [])
    assert refused.value.details["without"] == ["--tags", "--skip-tags"]


FLEET = {"web1": "web", "web2": "web", "cache1": "cache", "compute1": "compute"}
COMPOSITION = {
    "roles": {
        role: {
            "task_groups": [
                task_group(f"{step}/{service}") for step in ("validate", "prepare", "verify", "post_upgrade")
            ]
        }
        for role, service in (("web", "nginx"), ("cache", "redis"))
    },
    "pull_roles": {"compute": {"task_groups": [task_group("post_upgrade/nova")]}},
}
UNSELECTED = "the tags select none of its tasks"
PULLED = "it upgrades itself, and tags select no part of that"


def outside(only: str, scope: RunScope, **states: str) -> OutsideTags:
    plan = {
        "hosts": {
            host: {"role": role, "state": states.get(host, "pending"), "done": ["prepare/nginx"] * (host in states)}
            for host, role in FLEET.items()
        }
    }
    return hosts_outside_tags(plan, COMPOSITION, scope, {}, only.split(","), [])


def test_with_tags_of_the_validation_nothing_begins() -> None:
    scope = scope_of("web1", "web2", "cache1", pulled="compute1", begun="web1")
    found = outside("validate", scope, web1="upgrading")
    assert found.reasons == {**dict.fromkeys(("web1", "web2", "cache1"), UNSELECTED), "compute1": PULLED}
    narrowed = found.narrow(scope)
    assert (narrowed.pushed_hosts, {*narrowed.plays.values()}) == ((), {()})
    assert narrowed.validate == ("web2", "cache1")
    assert f"Not in this run, because of its tags: web1, web2, cache1; {UNSELECTED}." in found.lines()


def test_hosts_without_a_selected_task_and_hosts_that_upgrade_themselves_are_left_out() -> None:
    scope = scope_of("web1", "web2", "cache1", pulled="compute1", begun="web1")
    found = outside("redis", scope, web1="upgrading")
    assert found == OutsideTags({"web1": UNSELECTED, "web2": UNSELECTED, "compute1": PULLED})
    assert found.narrow(scope) == scope_of("cache1")
    # A host whose task groups are all finished only ends.
    assert "web1" not in outside("verify", scope_of("web1", begun="web1"), web1="upgrading").reasons
    # A pull host that is upgraded is waited for no longer, and one that is held is not waited for.
    for state in ("upgraded", "held"):
        assert "compute1" not in outside("prepare", scope, web1="upgrading", compute1=state).reasons


@pytest.mark.parametrize("only", ["post_upgrade", "nova"])
def test_tags_that_select_nothing_that_is_left_are_refused(only: str) -> None:
    with pytest.raises(UpgradeError) as refused:
        outside(only, scope_of("web1", "web2", pulled="compute1"))
    assert refused.value.code == "no_such_tag"
    assert refused.value.message == (
        f"--tags {only}: these tags select no task that is left, so nothing would be done. web1, web2: {UNSELECTED}. compute1: {PULLED}."
    )
    # After the upgrade, they select post-upgrade tasks.
    assert outside(only, scope_of()) == OutsideTags()


@pytest.mark.parametrize(("step", "only"), [("prepare", "schema"), ("verify", "schema,data")])
def test_a_part_of_what_one_host_runs_for_all_is_refused(step: str, only: str) -> None:
    one = {**task_group(f"{step}/shop"), "once": True, "tags": [*tags_of(step), "shop", "schema", "data"]}
    plan = {"hosts": {"web1": {"role": "web", "done": [], "state": "pending"}}}

    def refused(*tags: str) -> str:
        try:
            hosts_outside_tags(plan, {"roles": {"web": {"task_groups": [one]}}}, scope_of("web1"), {}, tags, ())
        except UpgradeError as error:
            assert error.code == "partial_tags"
            return error.message
        return ""

    assert f"{step}/shop runs once for all hosts, and may count as done there with a part" in refused(*only.split(","))
    assert refused("shop") == refused(step) == ""


def test_a_part_of_a_post_upgrade_task_group_of_all_hosts_is_refused() -> None:
    one = {**task_group("post_upgrade/shop"), "once": True, "tags": [*tags_of("post_upgrade"), "shop", "schema"]}
    composition = {"roles": {"web": {"task_groups": [one]}}}
    with pytest.raises(UpgradeError, match="post_upgrade/shop runs once for all hosts") as caught:
        post_upgrade_outside_tags(composition, ["web1"], {"web1": "web"}, ["schema"], [])
    assert caught.value.code == "partial_tags"
    # Its hosts are done.
    assert post_upgrade_outside_tags(composition, [], {"web1": "web"}, ["schema"], []) == OutsideTags()
    for only in ("shop", "post_upgrade"):
        assert post_upgrade_outside_tags(composition, ["web1"], {"web1": "web"}, [only], []) == OutsideTags()


def test_hosts_without_a_selected_post_upgrade_task_are_left_out() -> None:
    def left_out(*only: str) -> list[str]:
        return [*post_upgrade_outside_tags(COMPOSITION, FLEET, FLEET, only, []).reasons]

    assert left_out("all") == left_out("post_upgrade") == []
    assert left_out("nginx") == ["cache1", "compute1"]
    assert left_out("prepare") == [*FLEET]


@pytest.mark.parametrize(
    ("tags", "playbook", "own", "is_refused"),
    [
        (["validate"], "convoy.upgrade.upgrade", ["always"], True),
        (["mine"], "convoy.upgrade.upgrade", ["always"], True),
        (["step3"], "site.yml", ["always"], True),
        # Those of the import itself, and of other plays.
        (["upgrade"], "site.yml", ["always", "upgrade"], False),
        (["mine"], "site.yml", ["always"], False),
        (["all"], "convoy.upgrade.upgrade", ["always"], False),
    ],
)
def test_tags_of_steps_are_refused_where_no_task_has_them(
    tags: list[str], playbook: str, own: list[str], is_refused: bool
) -> None:
    if not is_refused:
        refuse_tags_of_pull(tags, [playbook], own)
        return
    with pytest.raises(UpgradeError) as refused:
        refuse_tags_of_pull(tags, [playbook], own)
    assert refused.value.code == "no_such_tag"
