# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The finished task groups in a host's record that count in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import FAILED, STARTED, UPGRADED, HostRecord
from ansible_collections.convoy.upgrade.plugins.module_utils._host.host_report import HostReport, next_record
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout._commands.retry_records import put_back_record
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.task_order import reversed_role
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.host_run import (
    HostRun,
    finished_groups,
    repeated_stops,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import (
    POST_UPGRADE_PHASE,
    UPGRADE,
    PushRun,
    RunTaskGroup,
    task_groups_of_role,
)
from written_services import Roles

TASK_GROUPS = (
    RunTaskGroup("stop/db", "stop", "db", once=False),
    RunTaskGroup("upgrade/db@2.8", "upgrade", "db", once=False, checkpoint="db@2.8"),
    RunTaskGroup("upgrade/db@2.10", "upgrade", "db", once=False, checkpoint="db@2.10"),
    RunTaskGroup("upgrade/cloud@2.10", "upgrade", "cloud", once=False, checkpoint="cloud@2.10", provider=True),
    RunTaskGroup("upgrade/cloud", "upgrade", "cloud", once=False, provider=True),
    RunTaskGroup("post_upgrade/db", "post_upgrade", "db", once=False),
)
CHECKPOINTS = ("db@2.8", "db@2.10", "cloud@2.10")
DONE = ("stop/db", "upgrade/db@2.6", "upgrade/db@2.8", "upgrade/cloud@2.10", "upgrade/cloud")


def run(version: str = "2.10", phase: str = UPGRADE, checkpoints: tuple[str, ...] = CHECKPOINTS) -> PushRun:
    return PushRun(
        Settings(), version, phase, {"db1": "db"}, {"db": TASK_GROUPS}, ("db1",), checkpoints={"db1": checkpoints}
    )


@pytest.mark.parametrize(
    ("version", "checkpoints", "expected"),
    [
        ("2.10", CHECKPOINTS, ["stop/db", "upgrade/db@2.8"]),
        # On the way to another version, task groups without a checkpoint run again.
        ("2.12", CHECKPOINTS, ["upgrade/db@2.8"]),
        # On the way back, the upgrade path has no checkpoint.
        ("2.6", (), []),
    ],
)
def test_task_groups_of_providers_never_count(version: str, checkpoints: tuple[str, ...], expected: list[str]) -> None:
    assert (
        list(finished_groups(run(version, checkpoints=checkpoints), "db1", HostRecord("2.10", FAILED, done=DONE)))
        == expected
    )


def test_checkpoints_of_an_earlier_path_do_not_count() -> None:
    # The host failed on the way to 2.10. Then it failed on the way back to 2.6 before its first step, so its record still has the checkpoints.
    record = HostRecord("2.6", FAILED, done=("upgrade/db@2.8",))
    assert not finished_groups(run("2.6", checkpoints=()), "db1", record)


def test_an_unreadable_record_or_one_of_another_upgrade_has_no_finished_task_group() -> None:
    record = HostRecord("2.10", FAILED, done=("post_upgrade/db", "upgrade/db@2.8"))
    assert list(finished_groups(run(phase=POST_UPGRADE_PHASE), "db1", record)) == ["post_upgrade/db"]
    assert not finished_groups(run("2.12", POST_UPGRADE_PHASE), "db1", record)
    assert not finished_groups(run(), "db1", replace(record, readable=False))
    assert not finished_groups(run(), "db1", None)


@pytest.mark.parametrize(
    ("step", "done", "expected"),
    [
        ("stop", ("prepare/db", "may_stop/db", "drain/db"), ["prepare/db"]),
        # What kept it from beginning may have been corrected.
        ("drain", ("prepare/db", "may_stop/db"), []),
        ("prepare", ("prepare/db",), []),
        # Without tasks of the step stop, it runs until it is upgraded.
        ("upgrade", ("prepare/db", "may_stop/db", "drain/db"), ["prepare/db"]),
        ("upgrade", ("may_stop/db", "drain/db", "stop/db"), ["may_stop/db", "drain/db", "stop/db"]),
        ("stop", ("may_stop/db", "stop/web"), ["may_stop/db", "stop/web"]),
        # Tags ended the run after these steps.
        (None, ("may_stop/db", "drain/db"), ["may_stop/db", "drain/db"]),
    ],
)
def test_a_host_asks_again_whether_it_may_stop_if_no_service_was_stopped(
    step: str | None, done: tuple[str, ...], expected: list[str]
) -> None:
    groups = tuple(
        RunTaskGroup(f"{step}/{service}", step, service, once=False)
        for step in ("prepare", "may_stop", "drain", "stop", "upgrade")
        for service in ("db", "web")
    )
    of_run = replace(run(), task_groups={"db": groups})
    assert list(finished_groups(of_run, "db1", HostRecord("2.10", FAILED, done=done, step=step))) == expected


@pytest.mark.parametrize(("failed_at", "expected"), [("prepare", []), ("drain", []), ("stop", ["prepare/db"])])
def test_what_is_prepared_is_prepared_again_if_the_host_failed_before_anything_stopped(
    failed_at: str, expected: list[str]
) -> None:
    groups = tuple(
        RunTaskGroup(f"{step}/db", step, "db", once=False) for step in ("prepare", "may_stop", "drain", "stop")
    )
    checkpoint = RunTaskGroup("prepare/db@2.4", "prepare", "db", once=False, checkpoint="db@2.4")
    of_run = replace(run(checkpoints=("db@2.4",)), task_groups={"db": (checkpoint, *groups)})
    record = None
    for at, step in enumerate(dict.fromkeys(("prepare", failed_at))):
        record = next_record(record, HostReport("db1", "2.10", STARTED, "db", step), at)
    assert record is not None
    record = replace(record, done=("prepare/db@2.4", "prepare/db"))
    record = next_record(record, HostReport("db1", "2.10", FAILED, "db", failed_at, "no disk"), 9)
    assert list(finished_groups(of_run, "db1", record)) == ["prepare/db@2.4", *expected]


@pytest.mark.parametrize(
    ("done", "expected"),
    [
        ("prepare/app", ""),
        ("prepare/app drain/app stop/app", "stop/app"),
        ("stop/app stop/app/3 upgrade/app", "stop/app stop/app/3"),
        # Nothing would start it again.
        ("stop/app stop/app/3 upgrade/app start/app", ""),
        # Without the step start, the step upgrade starts it.
        ("stop/app upgrade/app start/app stop/old", "stop/old"),
        ("stop/old upgrade/old", ""),
        # What one host runs for all does not start it on each.
        ("stop/old upgrade/old/2", "stop/old"),
        ("stop/db@2.8 stop/db upgrade/db@2.8", "stop/db"),
        ("stop/db@2.8 stop/db upgrade/db@2.8 upgrade/db start/db", ""),
        ("stop/db@2.8", "stop/db@2.8"),
        # It is not known which service starts it.
        ("stop/timer", ""),
    ],
)
def test_a_service_stops_again_until_it_is_started(done: str, expected: str) -> None:
    names = (
        *("prepare/app", "drain/app", "stop/app", "stop/app/3", "upgrade/app", "start/app", "start/app/2"),
        *("stop/old", "upgrade/old", "upgrade/old/2", "stop/db@2.8", "stop/db", "upgrade/db@2.8", "upgrade/db"),
        *("start/db", "stop/timer"),
    )
    groups = []
    for name in names:
        step, service, *_number = name.split("/")
        checkpoint = service if "@" in service else ""
        once = name in ("upgrade/old/2", "start/app/2")
        groups.append(RunTaskGroup(name, step, service.partition("@")[0], once=once, checkpoint=checkpoint))
    of_run = replace(run(), task_groups={"db": tuple(groups)})
    assert repeated_stops(of_run, "db1", done.split()) == {*expected.split()}


def test_services_that_stop_together_do_not_stop_again_once_one_is_started() -> None:
    groups = tuple(
        RunTaskGroup(f"{step}/{service}", step, service, once=False)
        for step in ("stop", "upgrade", "start")
        for service in ("db", "web")
    )
    of_run = replace(run(), task_groups={"db": groups})
    done = ["stop/db", "stop/web", "upgrade/db"]
    assert repeated_stops(of_run, "db1", done) == {"stop/db", "stop/web"}
    assert not repeated_stops(of_run, "db1", [*done, "upgrade/web", "start/db"])


def test_in_a_rollback_a_service_stops_again_after_those_that_go_before_it(tmp_path: Path) -> None:
    roles = Roles(tmp_path)
    roles.simple("app", "stop", "upgrade", "start", requires="store")
    roles.simple("store", "stop", "upgrade", "start")
    data = roles.compose({"db": ["app", "store"]}).plain()["roles"]["db"]
    back = replace(run(), task_groups={"db": task_groups_of_role(reversed_role(data))})
    # The run ended between the two, and after the stop of the second one.
    done = ["stop/app", "upgrade/app", "start/app"]
    assert not repeated_stops(back, "db1", done)
    assert repeated_stops(back, "db1", [*done, "stop/store"]) == {"stop/store"}
    assert repeated_stops(back, "db1", ["stop/app", "upgrade/app"]) == {"stop/app"}
    # An operator changes the order meanwhile.
    forward = replace(run(), task_groups={"db": task_groups_of_role(data)})
    assert repeated_stops(forward, "db1", [*done, "stop/store"]) == {"stop/store"}


def test_stops_of_a_provider_do_not_run_again() -> None:
    groups = tuple(
        RunTaskGroup(f"{step}/cloud", step, "cloud", once=False, provider=True) for step in ("stop", "upgrade")
    )
    of_run = replace(run(), task_groups={"db": groups})
    done = finished_groups(of_run, "db1", HostRecord("2.10", FAILED, done=("stop/cloud",)))
    assert not repeated_stops(of_run, "db1", done)


@pytest.mark.parametrize("seconds", [0, 1])
def test_what_an_upgrade_that_has_ended_stopped_is_not_stopped_in_the_next_one_to_the_same_version(
    seconds: int,
) -> None:
    """As after a failed health check, also if all of it happens in one second."""
    now = 1700000000
    record: HostRecord | None = None

    def report(state: str, step: str | None = None) -> None:
        nonlocal now, record
        record = next_record(record, HostReport("db1", "2.10", state, "db" if step else None, step), now)
        now += seconds

    for one in ("prepare", "drain", "stop", "upgrade"):
        report(STARTED, one)
    report(FAILED, "upgrade")
    report(STARTED, "upgrade")
    assert HostRun("db1", record=record).stopping_step == "stop"
    report(UPGRADED)
    record = put_back_record(record, "2.10", "2.10", now)
    for one in ("prepare", "drain"):
        report(STARTED, one)
    begun = [one.step for one in HostRun("db1", record=record).begun_steps if one.step]
    # Within one second, the end of a failed try is not told from that of the upgrade, so the steps after it count.
    assert begun == [*([] if seconds else ["upgrade"]), "prepare", "drain"]
    report(FAILED, "drain")
    assert record is not None
    of_run = replace(run(), task_groups={"db": (RunTaskGroup("prepare/db", "prepare", "db", once=False),)})
    record = replace(record, done=("prepare/db",))
    assert bool(finished_groups(of_run, "db1", record)) == (not seconds)
    report(STARTED, "stop")
    assert HostRun("db1", record=record).stopping_step
