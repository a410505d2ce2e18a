# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The waits of the step drain end before the limit of a task in a run, as a host whose task is ended there counts as lost."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT
from jinja2 import ChainableUndefined
from jinja2.nativetypes import NativeEnvironment

# As after some items of a loop.
SPENT = 100
NO_LIMIT: dict[str, Any] = {"upgrade_prepared": {"task_timeout": 0}}


def render(expressions: dict[str, Any], **variables: Any) -> dict[str, Any]:
    """Return the values of expressions, each of which may have those before it."""
    environment = NativeEnvironment(autoescape=False, undefined=ChainableUndefined)
    environment.filters["convoy.upgrade.time_left"] = lambda seconds: seconds and max(1, seconds - SPENT)
    for name, expression in expressions.items():
        variables[name] = environment.from_string(str(expression)).render(variables)
    return {name: variables[name] for name in expressions}


@pytest.mark.parametrize(
    ("given", "others", "sessions"),
    [
        ({}, 1800, 120),
        (NO_LIMIT, 1800, 120),
        ({"upgrade_prepared": {"task_timeout": 7200}}, 1800, 120),
        ({"upgrade_prepared": {"task_timeout": 600}}, 350, 120),
        ({"upgrade_prepared": {"task_timeout": 140}}, 0, 20),
        ({**NO_LIMIT, "upgrade_in_wave": True}, 120, 120),
        ({"upgrade_prepared": {"task_timeout": 300}, "upgrade_in_wave": True}, 50, 120),
    ],
)
def test_a_balancer_waits_no_longer_than_a_task_may_still_take(
    given: dict[str, Any], others: int, sessions: int
) -> None:
    (block,) = yaml.safe_load((ROOT / "roles/haproxy_backend/tasks/set.yml").read_text())
    options = block["block"][0]["convoy.upgrade.haproxy_server"]
    expressions = {**block.get("vars", {}), **{name: options[name] for name in ("others_timeout", "timeout")}}
    found = render(expressions, **given, haproxy_backend_timeout=120, haproxy_backend_others_timeout=1800)
    assert (found["others_timeout"], found["timeout"]) == (others, sessions)


@pytest.mark.parametrize(
    ("given", "patience"),
    [
        ({}, 1800),
        (NO_LIMIT, 1800),
        ({"upgrade_prepared": {"task_timeout": 7200}}, 1800),
        ({"upgrade_prepared": {"task_timeout": 600}}, 570),
        ({"upgrade_prepared": {"task_timeout": 40}}, 20),
        ({"upgrade_prepared": {"task_timeout": 600}, "upgrade_in_wave": True}, 0),
    ],
)
def test_a_host_waits_for_others_in_consul_no_longer_than_a_task_may_take(given: dict[str, Any], patience: int) -> None:
    (block,) = yaml.safe_load((ROOT / "roles/consul_service/tasks/take_out.yml").read_text())
    (wait,) = (one for one in block["block"] if "consul_service_patience" in one.get("vars", {}))
    found = render(wait["vars"], **given, consul_service_others_timeout=1800)
    assert found["consul_service_patience"] == patience


@pytest.mark.parametrize(
    ("others", "seconds", "ends"), [(["web2"], 1, True), ([], 569, False), ([], 571, True), (["web2"], 571, True)]
)
def test_a_host_waits_for_others_in_consul_no_longer_also_if_each_request_takes_long(
    others: list[str], seconds: int, *, ends: bool
) -> None:
    tasks = yaml.safe_load((ROOT / "roles/consul_service/tasks/other_hosts.yml").read_text())
    (ask,) = (one for task in tasks for one in task.get("block", ()) if "until" in one)
    now = datetime.now(timezone.utc)
    found = render(
        {"until": f"{{{{ {ask['until']} }}}}"},
        consul_service_others=others,
        consul_service_others_passing=1,
        consul_service_patience=570,
        consul_service_began=now.timestamp() - seconds,
        now=lambda: now,
    )
    assert found["until"] is ends
