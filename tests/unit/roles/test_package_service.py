# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""package_service: what apt-cache prints of versions, and the policy that keeps package scripts from starting services."""

from __future__ import annotations

import os
import subprocess
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.plugins.filter.core import regex_findall
from ansible.plugins.test.core import search
from devkit.agent import ROOT
from jinja2.nativetypes import NativeEnvironment

TASKS = ROOT / "roles/package_service/tasks"
# Phased updates of Ubuntu, as apt 2.4 and 2.7 print them, after the priority of the version.
POLICY = """\
haproxy:
  Installed: {installed}
  Candidate: {installed}
  Version table:
{newest}
     2.8.5-1ubuntu3.3 500
        500 http://archive.ubuntu.com/ubuntu noble-security/main amd64 Packages
{oldest}
"""
NEWEST = "2.8.5-1ubuntu3.4"
SOURCE = "        500 http://archive.ubuntu.com/ubuntu noble-updates/main amd64 Packages"
INSTALLED = "        100 /var/lib/dpkg/status"


def outcome(policy: str) -> dict[str, Any]:
    """Return the facts that a role notes of the output of apt-cache."""
    task = yaml.safe_load((TASKS / "list_versions/apt.yml").read_text())[1]
    jinja = NativeEnvironment()
    jinja.filters["regex_findall"] = regex_findall
    variables: dict[str, Any] = {"package_service_policy": {"stdout": policy}}
    texts = {**task["vars"], **task["ansible.builtin.set_fact"]}
    plain = {name: text for name, text in texts.items() if "{{" not in text}
    variables |= plain
    order = ("in_source", "newest", "found", "known", "outdated", "unoffered")
    for name in (f"package_service_{one}" for one in order):
        # Ansible keeps the backslashes of texts in templates.
        variables[name] = jinja.from_string(texts[name].replace("\\", r"\\")).render(**variables)
    assert {*texts} <= {*variables}
    return variables


@pytest.mark.parametrize(
    ("says", "ends"),
    [
        ("", True),
        ("E: Unable to locate package nginx", True),
        ("E: dpkg was interrupted, you must manually run 'dpkg --configure -a' to correct the problem.", True),
        ("E: Could not get lock /var/cache/apt/archives/lock. It is held by process 7 (apt-get)", False),
        ("E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)", False),
    ],
)
def test_a_download_waits_for_each_lock_of_apt_with_a_limit(says: str, ends: bool) -> None:
    task = yaml.safe_load((TASKS / "downloads/apt.yml").read_text())[0]
    jinja = NativeEnvironment()
    jinja.tests["search"] = search
    variables = {
        "package_service_downloaded": {"stderr": says},
        "package_service_lock_timeout": "60",
        "package_service_packages": [],
    }
    assert jinja.from_string("{{ " + task["until"] + " }}").render(**variables) is ends
    assert (jinja.from_string(task["retries"]).render(**variables), task["delay"]) == (13, 5)
    # apt-get's own wait is short, as the task repeats it.
    assert "DPkg::Lock::Timeout=1" in jinja.from_string(task["ansible.builtin.command"]["argv"]).render(**variables)


@pytest.mark.parametrize("priority", ["", " 500", " -10", " 500 (phased 20%)", " (phased 0%)"])
def test_a_version_in_a_source_is_offered_whatever_follows_it(priority: str) -> None:
    shown = POLICY.format(installed=NEWEST, newest=f" *** {NEWEST}{priority}\n{SOURCE}\n{INSTALLED}", oldest="")
    found = outcome(shown)
    assert (found["package_service_known"], found["package_service_unoffered"]) == (["haproxy"], [])


@pytest.mark.parametrize("priority", ["", " 100"])
def test_a_version_that_no_source_has_is_not_offered(priority: str) -> None:
    found = outcome(POLICY.format(installed=NEWEST, newest=f" *** {NEWEST}{priority}\n{INSTALLED}", oldest=""))
    assert found["package_service_unoffered"] == [("haproxy", NEWEST, "2.8.5-1ubuntu3.3")]


@pytest.mark.parametrize(
    ("minutes", "own", "code"), [(0, None, 101), (179, 104, 101), (181, None, 0), (181, 104, 104), (100_000, None, 0)]
)
def test_the_policy_forbids_starts_for_some_hours_only(
    tmp_path: Path, minutes: int, own: int | None, code: int
) -> None:
    (block,) = yaml.safe_load((TASKS / "packages/apt.yml").read_text())
    (text,) = (one["ansible.builtin.copy"]["content"] for one in block["block"] if "ansible.builtin.copy" in one)
    at = datetime.now(timezone.utc)
    policy = tmp_path / "policy-rc.d"
    policy.write_text(NativeEnvironment().from_string(text).render(now=lambda **_how: at) + "\n")
    if own is not None:
        (tmp_path / "policy-rc.d.convoy").write_text(f"#!/bin/sh\nexit {own}\n")
        (tmp_path / "policy-rc.d.convoy").chmod(0o755)
    policy.chmod(0o755)
    then = time.time() - minutes * 60
    os.utime(policy, (then, then))
    assert subprocess.run([policy, "nginx", "start"], check=False).returncode == code
    # Ansible does not write a file again whose text is the same, and its time would stay that of an interrupted run.
    assert str(at) in policy.read_text()
