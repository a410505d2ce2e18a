# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The environment of an agent run: what it takes from the host, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import (
    may_be_template,
    without_templates,
)
from convoy_node.agent_run import Release, as_variables, environment
from convoy_node.node.connection import Connection
from convoy_node.node.settings import NodeSettings

RELEASE = Release(Path("/opt/convoy/releases/r1"), "r1", "/usr/bin/python3")
SETTINGS = NodeSettings("web1", "web", Connection(host="consul.example.org"), {})


def test_a_proxy_gets_no_request_to_consul() -> None:
    found = environment(RELEASE, SETTINGS, {"http_proxy": "http://proxy:3128", "no_proxy": "example.net"})
    assert found["http_proxy"] == "http://proxy:3128"
    assert found["no_proxy"] == "example.net,consul.example.org,127.0.0.1"
    assert found["NO_PROXY"] == "consul.example.org,127.0.0.1"
    assert environment(RELEASE, SETTINGS, {"no_proxy": "*"})["no_proxy"] == "*"


def test_ansible_reads_no_configuration_of_the_host() -> None:
    found = environment(RELEASE, SETTINGS, {"ANSIBLE_CONFIG": "/etc/ansible/other.cfg", "ANSIBLE_STRATEGY": "free"})
    assert found["ANSIBLE_CONFIG"] == "/run/convoy/tmp/ansible.cfg"
    assert "ANSIBLE_STRATEGY" not in found


def test_hooks_and_tasks_have_a_home() -> None:
    assert environment(RELEASE, SETTINGS, {})["HOME"] == str(Path.home())
    assert environment(RELEASE, SETTINGS, {"HOME": "/srv/home"})["HOME"] == "/srv/home"


def test_programs_that_tasks_run_do_not_get_the_libraries_of_the_agent(tmp_path: Path) -> None:
    # As the package of the agent had it.
    (tmp_path / "lib").mkdir()
    (tmp_path / "release.json").write_text('{"name": "r1", "python": "/usr/bin/python3"}')
    assert "PYTHONPATH" not in environment(Release.at(tmp_path), SETTINGS, {"PYTHONPATH": "/srv/lib"})


def test_no_variable_is_a_template_and_the_rule_is_that_of_the_collection() -> None:
    texts = ["{{ 1 + 1 }}", "{% if", "{# c", "#jinja2: variable_start_string:'[['\n[[ 1 + 1 ]]", "plain"]
    for text in texts:
        found = json.loads(as_variables(a=text))["a"]
        assert found == without_templates(text)
        assert not may_be_template(found)
