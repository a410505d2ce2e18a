# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A push run refuses in sentences what it can't begin with, and shows no secret."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from .site import PLAYBOOKS, Site

SECRET = "not-to-be-seen"


def drive(site: Site, *, watched: bool = True, **options: Any) -> str:
    """Prepare a run and start it, with a token and as many arguments as Ansible has; return what was printed."""
    given = {"version": "v1", "folder": str(site.folder / "composed"), **options}
    tasks = [
        {"convoy.upgrade.prepare_run": given},
        {"convoy.upgrade.push_run": {"state": "started", "timeout": 0.5}},
    ]
    defaults = {
        "group/convoy.upgrade.consul": {"token": "{{ lookup('ansible.builtin.env', 'SITE_TOKEN') }}", "port": 1}
    }
    play = {"hosts": "localhost", "gather_facts": False, "module_defaults": defaults, "tasks": tasks}
    file = site.folder / "drive.yml"
    file.write_text(yaml.safe_dump([play]))
    # From where Ansible itself would not show it.
    environ = {"SITE_TOKEN": SECRET}
    if watched:
        environ["ANSIBLE_CALLBACK_PLUGINS"] = str(PLAYBOOKS / "callback_plugins")
    ended = site.end(site.start(file, "-vvvvv", "--diff", environ=environ))
    assert ended.code == 2, ended.stdout
    assert SECRET not in ended.stdout
    return " ".join(ended.stdout.split())


@pytest.fixture
def empty(site: Site) -> Site:
    site.inventory({}, {})
    return site


@pytest.mark.thorough
def test_without_a_version_it_does_not_start(empty: Site) -> None:
    assert "version is not given. Add -e version=X." in drive(empty, version="")


@pytest.mark.thorough
def test_without_consul_it_does_not_start(empty: Site) -> None:
    assert "Consul at http://127.0.0.1:1 can't be reached: Connection refused." in drive(empty)


def test_without_the_callback_it_does_not_start(empty: Site) -> None:
    task = {"convoy.upgrade.push_run": {"state": "started"}}
    file = empty.folder / "alone.yml"
    file.write_text(yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]))
    shown = " ".join(empty.end(empty.start(file)).stdout.split())
    assert "no_daemon" in shown or "no_watch" in shown
