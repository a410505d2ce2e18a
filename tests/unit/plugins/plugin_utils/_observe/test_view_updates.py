# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The updates of the view for each read."""

from __future__ import annotations

import pickle
from dataclasses import asdict, replace

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.errors import Unreachable
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import (
    HostProgress,
    RoleProgress,
    RolloutProgress,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._planner.plan import HostView, Plan
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.fleet_info import FleetView
from ansible_collections.convoy.upgrade.plugins.module_utils._queries.follow import ProgressUpdate
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_messages import ViewUpdate
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.view_updates import ViewUpdates

FOUND = RolloutProgress(
    "2", "1", "running", (RoleProgress("web", 2, 0, 1, 0, 1),), (), 0, (), None, 0, 0.0, False, False
)
PAUSED = "No host is admitted: the rollout is paused by ann"


def updates(found: RolloutProgress = FOUND, *warnings: str, **states: str) -> ProgressUpdate:
    hosts = {host: HostView("web", None, state, "1", "because") for host, state in states.items()}
    return ProgressUpdate(found, hosts, FleetView(Snapshot(index=7), Plan(), warnings=warnings))


def test_changes_are_lines_and_the_count_is_separate() -> None:
    shown = ViewUpdates()
    first = shown.update(updates(web1="upgrading", web2="pending"))
    second = shown.update(updates(web1="upgraded", web2="upgrading"))

    assert first.lines == ("web1 upgrading: because",)
    assert second.lines == (
        "web1 upgraded",
        "web2 upgrading: because",
    )
    assert second.count == shown.count == "-- 2: web 1/2; 1 upgrading, 0 waiting"
    assert second.index == 7
    assert pickle.loads(pickle.dumps(second)).progress == FOUND


def test_a_pass_before_the_first_read_is_shown_with_it() -> None:
    shown = ViewUpdates(["web1 upgrading: admitted"], {"web1": "upgrading"})

    assert shown.update(updates(web1="upgraded")).lines == (
        "web1 upgrading: admitted",
        "web1 upgraded",
    )


def test_the_beginning_and_end_of_a_blocker_are_shown_once() -> None:
    shown = ViewUpdates()
    stopped = updates(replace(FOUND, notes=(PAUSED,)))

    assert [shown.update(one).lines for one in (updates(), stopped, stopped, updates(), updates())] == [
        (),
        (PAUSED,),
        (),
        ("It continues.",),
        (),
    ]


def test_another_rollout_is_shown() -> None:
    shown = ViewUpdates()
    shown.update(updates())

    assert shown.update(updates(replace(FOUND, version="3"))).lines == (
        "Another rollout has begun: the fleet goes to 3 now.",
    )


def test_the_loss_and_return_of_consul_are_shown_once() -> None:
    shown = ViewUpdates()
    away = Unreachable("unreachable", "Consul at http://there can't be reached: refused.")
    first, second = shown.update(away), shown.update(away)

    assert first.lines == (
        "Consul at http://there can't be reached: refused. The view shows the last known state, and retries.",
    )
    assert second == ViewUpdate((), away="Consul at http://there can't be reached: refused.")
    assert shown.update(updates()).lines == ("Consul is back.",)


def test_warnings_are_shown_once() -> None:
    shown = ViewUpdates()

    assert [shown.update(updates(FOUND, "no such host")).lines for _each in range(2)] == [
        ("Warning: no such host",),
        (),
    ]


def test_updates_are_sanitized() -> None:
    flight = HostProgress("web\x1b[2J", "web", "ng\x9binx", "st\nop", "upgrading", None)
    message = ViewUpdates().update(updates(replace(FOUND, flights=(flight,), notes=("a\x07b",)), "c\rd", web1="failed"))

    def texts(value: object) -> list[str]:
        if isinstance(value, dict):
            return [text for below in value.values() for text in texts(below)]
        if isinstance(value, (list, tuple)):
            return [text for below in value for text in texts(below)]
        return [value] if isinstance(value, str) else []

    assert texts(asdict(message))
    assert all(text.isprintable() for text in texts(asdict(message)))
