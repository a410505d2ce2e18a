# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which hosts of a PostgreSQL cluster go last."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from devkit.agent import ROOT
from jinja2.nativetypes import NativeEnvironment

ORDER = ROOT / "roles/postgresql/tasks/order.yml"
FILE: dict[str, Any] = {"postgresql_migration_file": "v2.sql"}
COMMAND: dict[str, Any] = {"postgresql_migration_command": ["migrate"]}


def goes_last(*, replica: bool, streaming: int = 0, **more: Any) -> Any:
    *_others, fact = yaml.safe_load(ORDER.read_text())
    expression = fact["ansible.builtin.set_fact"]["upgrade_goes_last"]
    variables = {"postgresql_is": {"replica": replica}, "postgresql_streaming": {"stdout": f"{streaming}\n"}}
    variables |= {"postgresql_migration_file": "", "postgresql_migration_command": []}
    variables |= {"postgresql_switchover_command": [], **more}
    return NativeEnvironment(autoescape=False).from_string(expression).render(variables)


def test_a_primary_goes_after_its_standbys() -> None:
    assert goes_last(replica=False, streaming=2) is True
    assert goes_last(replica=True) is False
    # A standby may have standbys of its own.
    assert goes_last(replica=True, streaming=1) is False
    assert goes_last(replica=False) is False


def test_a_primary_that_is_switched_over_goes_last_though_no_standby_streams_now() -> None:
    switch: dict[str, Any] = {"postgresql_switchover_command": ["switch"]}
    assert goes_last(replica=False, **switch) is True
    assert goes_last(replica=False, streaming=1, **switch) is True
    assert goes_last(replica=True, **switch) is False


@pytest.mark.parametrize("migration", [FILE, COMMAND], ids=["file", "command"])
def test_with_a_migration_standbys_go_after_their_primary(migration: dict[str, Any]) -> None:
    assert goes_last(replica=False, streaming=2, **migration) is False
    assert goes_last(replica=True, **migration) is True


def test_a_service_before_it_may_have_decided() -> None:
    assert goes_last(replica=True, upgrade_goes_last=True) is True
