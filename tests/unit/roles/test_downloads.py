# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Services download the packages that they install. Otherwise a host is without its service while they are downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from devkit.agent import ROOT

ROLES = sorted(path.parents[1] for path in (ROOT / "roles").glob("*/tasks/upgrade_tasks.yml"))


def includes(role: Path, tasks_from: str) -> Iterator[str]:
    """Yield the packages that each task of a role gives to a part of package_service."""

    def below(data: Any) -> Iterator[str]:
        if isinstance(data, list):
            for one in data:
                yield from below(one)
        elif isinstance(data, dict):
            what = data.get("ansible.builtin.include_role")
            if what == {"name": "convoy.upgrade.package_service", "tasks_from": tasks_from}:
                yield data["vars"]["package_service_packages"]
            else:
                yield from below([data.get(key) for key in ("block", "rescue", "always")])

    for file in sorted((role / "tasks").rglob("*.yml")):
        yield from below(yaml.safe_load(file.read_text()))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_service_downloads_what_it_installs(role: Path) -> None:
    assert {*includes(role, "packages")} == {*includes(role, "download")}


def test_some_services_install_packages() -> None:
    assert len([role for role in ROLES if any(includes(role, "packages"))]) >= 5
