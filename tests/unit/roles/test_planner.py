# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit of a planner service keeps what systemd itself counts as its sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from devkit.agent import ROOT
from jinja2 import Environment, StrictUndefined
from systemd_exposure import exposure, without

# The highest exposure that systemd-analyze may find. Releases of systemd differ a little: release 252 finds 1.7.
THRESHOLD = 2.0
# Without any of these, systemd finds more.
OPTIONS = (
    "CapabilityBoundingSet",
    "NoNewPrivileges",
    "ProtectHome",
    "ProtectSystem",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "SystemCallFilter",
    "User",
)


def unit() -> str:
    """Return the unit as the role writes it."""
    role = ROOT / "roles/planner"
    variables = yaml.safe_load((role / "vars/main.yml").read_text())
    environment = Environment(trim_blocks=True, undefined=StrictUndefined)
    return environment.from_string((role / "templates/convoy-planner.service.j2").read_text()).render(
        **yaml.safe_load((role / "defaults/main.yml").read_text())
        | {"planner_folders": ["/var/www/convoy"], "planner_sandbox": variables["planner_sandbox"]},
        ansible_managed="",
        puppet_gate_new_release="1",
    )


def test_its_exposure_is_not_above_the_threshold(tmp_path: Path) -> None:
    level, shown = exposure(tmp_path, unit())
    assert level <= THRESHOLD, shown


@pytest.mark.parametrize("option", OPTIONS)
def test_each_of_its_options_counts(tmp_path: Path, option: str) -> None:
    assert exposure(tmp_path, without(unit(), option))[0] > exposure(tmp_path, unit())[0]
