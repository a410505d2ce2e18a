# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tags that would leave hosts between two versions."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.partial_tags import early_lines, hosts_outside_tags
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import STEPS, tags_of

NAMES = [
    *("validate/nginx", "prepare/nginx", "upgrade/nginx@2.4", "upgrade/nginx@2.6", "stop/nginx", "stop/app"),
    *("upgrade/nginx", "upgrade/app", "start/nginx", "start/app", "verify/nginx", "post_upgrade/nginx"),
]


def task_group(name: str) -> dict[str, object]:
    step, _slash, rest = name.partition("/")
    service, _at, checkpoint = rest.partition("@")
    own = ["slow"] if name == "upgrade/app" else []
    return {
        "name": name,
        "step": step,
        "service": service,
        "checkpoint": checkpoint,
        "tags": [*tags_of(step), service, *own],
    }


def refusal(only: str, skip: str = "", done: str = "", checkpoints: tuple[str, ...] = ()) -> str:
    groups = sorted(map(task_group, NAMES), key=lambda one: [*STEPS, "post_upgrade"].index(str(one["step"])))
    plan = {"hosts": {"web1": {"role": "web", "done": done.split()}}}
    try:
        hosts_outside_tags(
            plan,
            {"roles": {"web": {"task_groups": groups}}},
            ["web1"],
            {"web1": checkpoints},
            only.split(","),
            skip.split(",") if skip else (),
        )
    except UpgradeError as error:
        assert error.code == "partial_tags"
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
        ("start", "", f"prepare/nginx {DOWN[:-20]}"),
        ("verify", "", f"prepare/nginx {DOWN}"),
        ("post_upgrade", "", f"prepare/nginx {DOWN} verify/nginx"),
        ("all", "verify", ""),
        ("all", "prepare,stop", ""),
        ("all", "slow", ""),
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
        ("prepare", "", "stop/nginx", "stop/app would be left to a later run"),
        ("nginx", "", "", "a later run would run stop/app after upgrade/nginx"),
        ("slow", "", "prepare/nginx stop/nginx stop/app upgrade/nginx", "upgrade/app would be left to a later run"),
        ("verify", "", "", "a later run would run prepare/nginx after verify/nginx"),
        ("all", "start", "", "start/nginx would count as done without being run"),
        ("all", "app", "", "upgrade/app would count as done without being run"),
    ],
)
def test_other_tags_are_refused(only: str, skip: str, done: str, reason: str) -> None:
    assert f"these tags would leave hosts between two versions. web1: {reason}" in refusal(only, skip, done)


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
    plan = {"hosts": {"web1": {"role": "web", "done": done}, "web2": {"role": "web", "done": []}}}
    composition = {"roles": {"web": {"task_groups": groups}}}
    early = hosts_outside_tags(plan, composition, ["web1", "web2"], {}, ["verify"], [])
    assert early == {"web2": "a later run would run prepare/nginx after verify/nginx"}
    assert early_lines(early) == [
        "Not in this run, because of its tags: web2; a later run would run prepare/nginx after verify/nginx."
    ]
    with pytest.raises(UpgradeError) as refused:
        hosts_outside_tags(plan, composition, ["web2"], {}, ["verify"], [])
    assert refused.value.details["without"] == ["--tags", "--skip-tags"]
