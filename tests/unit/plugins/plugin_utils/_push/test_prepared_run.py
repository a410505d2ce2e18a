# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is checked before a run begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import (
    PreparedRun,
    RunRequest,
    check_services,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.scope import CONTROL, DATA, FIRST, RunScope
from ansible_collections.convoy.upgrade.plugins.plugin_utils._upgrade_path.routes import Routes


def host(
    services: str | None, version: str | None = "1", role: str = "cache", state: str = "pending"
) -> dict[str, Any]:
    return {"role": role, "version": version, "state": state, "services": services}


def request(**hosts: dict[str, Any]) -> RunRequest:
    plan = {"hosts": hosts, "transitions": []}
    return RunRequest("2", {}, plan, {"roles": {}, "pull_roles": {"cache": {"tasks_id": "a1"}}}, {})


def test_pull_hosts_that_are_still_to_be_admitted_need_the_tasks_that_their_services_have_now() -> None:
    others = {state: host(None, state=state) for state in ("upgrading", "failed", "upgraded", "held")}
    check_services(request(same=host("a1"), own=host("{version}"), web=host(None, role="web"), **others))
    with pytest.raises(UpgradeError) as caught:
        check_services(
            request(
                cache1=host("a0"),
                cache2=host("a1"),
                cache3=host(None),
                cache4=host(None, None),
            )
        )
    assert caught.value.message == (
        "Nothing was touched: 3 pull hosts have no tasks of services, or other ones than upgrade_roles has now: cache1, cache3, cache4. Deliver "
        "them: ansible-playbook convoy.upgrade.enroll --limit cache1,cache3. cache4 never reported; give the version that it runs: "
        "ansible-playbook convoy.upgrade.enroll --limit cache4 -e puppet_gate_version=VERSION."
    )
    assert caught.value.details == {"hosts": ["cache1", "cache3", "cache4"]}


def test_hosts_of_a_role_whose_order_is_reversed_run_the_files_of_that() -> None:
    roles = {"web": {"task_groups": [], "is_reversed": True}, "db": {"task_groups": []}}
    fleet = {"web1": "web", "db1": "db"}
    plays: dict[str, tuple[str, ...]] = {FIRST: (), CONTROL: (), DATA: (*fleet,)}
    scope = RunScope(plays, (), (), plays)
    routes = Routes({}, {}, {}, {}, {}, ())
    of_run = PreparedRun(
        "1", "/run", fleet, {"web": (), "db": ()}, scope, routes, (), False, composition={"roles": roles}
    )
    hosts = of_run.as_result()["hosts"]
    assert {host: data["is_reversed"] for host, data in hosts.items()} == {"web1": True, "db1": False}
    # A job has no composition.
    assert replace(of_run, composition={}).as_result()["hosts"]["web1"]["is_reversed"] is False
