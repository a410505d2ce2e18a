# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hook gets notifications of a rollout in which Ansible upgrades the hosts."""

from __future__ import annotations

import pytest
from integration.support.runs.hook import example, listening

from .site import Site

ROLES = {"web": {"plane": "dataplane", "services": ["app"]}}
# What it prints looks like a template, and is none.
TASKS = """\
---
- name: Upgrade the app
  ansible.builtin.shell:
    cmd: "test ! -e LOG/broken || { echo '{%raw%}{{ 1 + 1 }}{%endraw%} no disk' >&2; exit 3; }"
  tags: [upgrade]

- name: Hand it its password
  ansible.builtin.shell:
    cmd: "test ! -e LOG/locked || { echo hunter2; exit 3; }"
  no_log: true
  tags: [start]
"""


@pytest.mark.thorough
def test_each_event_is_sent_once_and_a_host_that_is_tried_again_is_reported_again(site: Site) -> None:
    site.service("app", [])
    tasks = site.folder / "roles/app/tasks/upgrade_tasks.yml"
    tasks.write_text(TASKS.replace("LOG", str(site.log)))
    site.inventory(ROLES, {"web": ["web1", "web2"]})
    for name in ("broken", "locked"):
        (site.log / name).touch()
    rules = {"rolling_rules": {"global": 1}, "failure_rules": {"fleet": 1}}
    with listening() as chat:
        given = {"version": "v1", "upgrade_notify": str(example(site.folder)), "chat_webhook": chat.url}
        site.play("upgrade", code=2, instructions=rules, **given)
        begin, *others = chat.events
        assert (begin["event"], begin["hosts"]) == ("begin", 2)
        assert sorted(one["event"] for one in others) == ["failure", "pause"]
        failure = next(one for one in others if one["event"] == "failure")
        assert "{{ 1 + 1 }} no disk" in failure["failures"][0]["error"]
        assert {one["cause"] for one in others if one["event"] == "pause"} == {"budget"}

        (site.log / "broken").unlink()
        before = len(chat.events)
        site.play("upgrade", code=2, retry_failed=True, **given)
        again = [one for one in chat.events[before:] if one["event"] == "failure"]
        assert [one["host"] for event in again for one in event["failures"]] == ["web1"]
        assert "no_log hides why" in again[0]["failures"][0]["error"]
        assert "hunter2" not in str(chat.posted)

        (site.log / "locked").unlink()
        before = len(chat.events)
        site.play("upgrade", retry_failed=True, **given)
        assert [one["event"] for one in chat.events[before:] if one["event"] != "resume"] == ["end"]
        assert chat.events[-1]["upgraded"] == 2
