# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts of Redis go last, and which results of a switch-over are failures."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT
from jinja2.nativetypes import NativeEnvironment

ROLE = ROOT / "roles/redis"


def evaluate(expression: str, **variables: Any) -> Any:
    environment = NativeEnvironment(autoescape=False)
    environment.tests["match"] = lambda text, pattern: re.match(pattern, text) is not None
    return environment.from_string(expression).render(variables)


def tasks(found: Any) -> Iterator[dict[str, Any]]:
    """Return tasks, with those in blocks."""
    for one in found:
        yield one
        yield from tasks(one.get("block", ()))


@pytest.mark.parametrize(
    ("role", "connected", "offset", "command", "last"),
    [
        ("master", "1", "50", [], True),
        ("master", "0", "50", [], False),
        ("master", "0", "50", ["switch"], True),
        ("master", "0", "0", ["switch"], False),
        ("slave", "1", "50", ["switch"], False),
    ],
)
def test_a_primary_goes_after_its_replicas(
    role: str, connected: str, offset: str, command: list[str], *, last: bool
) -> None:
    *_others, fact = yaml.safe_load((ROLE / "tasks/order.yml").read_text())
    info = {"role": role, "connected_slaves": connected, "master_repl_offset": offset}
    expression = fact["ansible.builtin.set_fact"]["upgrade_goes_last"]
    assert evaluate(expression, redis_info=info, redis_switchover_command=command) is last


@pytest.mark.parametrize(
    ("rc", "stdout", "fails"),
    [
        (0, "OK", False),
        (0, "DONE with it", False),
        (0, "INFO switched to 192.0.2.7", False),
        (0, "", False),
        (1, "OK", True),
        # As redis-cli prints errors without -e, to a file and with --no-raw.
        (0, "ERR FAILOVER requires connected replicas.", True),
        (0, "(error) ERR FAILOVER requires connected replicas.", True),
        (0, "NOAUTH Authentication required.", True),
        (0, "NOGOODSLAVE No suitable replica to promote", True),
        (0, "INPROG Failover already in progress", True),
    ],
)
def test_a_switch_over_fails_if_redis_refuses_it_not_if_a_script_prints_capitals(
    rc: int, stdout: str, *, fails: bool
) -> None:
    found = tasks(yaml.safe_load((ROLE / "tasks/switch_over.yml").read_text()))
    (condition,) = (one["failed_when"] for one in found if one["name"] == "Run the command that switches over")
    refusals = yaml.safe_load((ROLE / "vars/main.yml").read_text())["redis_refusals"]
    result = {"rc": rc, "stdout": stdout}
    assert evaluate(f"{{{{ {condition} }}}}", redis_switched=result, redis_refusals=refusals) is fails
