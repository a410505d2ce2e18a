# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A wait for a rollout, with passes and a clock that the test sets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import Code, UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout.handover import HandedOver
from ansible_collections.convoy.upgrade.plugins.plugin_utils._daemon_client.continuation import (
    Continuation,
    note_continuation,
    noted_continuation,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.progress_lines import FleetStates
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.passes import Passes, PassFailed, WaitedPass
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.wait import RolloutWait

NOT_HANDED_OVER = HandedOver()
UNREACHABLE = UpgradeError("unreachable", "Consul can't be reached.")


class Clock(runtime.Runtime):
    """A clock that only waits move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def now(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Scripted(Passes):
    """Passes that a test has written down: a pass, None for no change, or a failure. Each ``next`` takes the time that it may take."""

    def __init__(self, clock: Clock, *script: WaitedPass | UpgradeError | None) -> None:
        super().__init__()
        self._clock = clock
        self._script = iter(script)
        self.waits: list[float] = []
        # What was noted before each ``next``.
        self.noted: list[Continuation] = []

    def _next(self) -> WaitedPass | None:
        found = next(self._script)
        if isinstance(found, UpgradeError):
            raise PassFailed({"changed": False, **found.as_result()})
        return found

    def first(self) -> WaitedPass:
        found = self._next()
        assert found is not None
        return found

    def next(self, seconds: float) -> WaitedPass | None:
        self.waits.append(seconds)
        self.noted.append(noted_continuation())
        found = self._next()
        if found is None:
            self._clock.seconds += seconds
        return found

    def close(self) -> None:
        """Hold nothing."""


class Lines(list[str]):
    """What was shown, and what the live view was given."""

    def __init__(self) -> None:
        super().__init__()
        self.followed: list[list[str]] = []
        self.is_shown = False

    def wait(self, passes: Passes) -> RolloutWait:
        return RolloutWait(
            passes, self.extend, lambda: self.is_shown, lambda lines, _states: self.followed.append(list(lines))
        )


@pytest.fixture
def clock() -> Iterator[Clock]:
    found = Clock()
    before = runtime.use(found)
    yield found
    runtime.use(before)


def made(
    state: str,
    *,
    can_move: bool = True,
    blocker: dict[str, str] | None = None,
    wake_at: float = 0,
    handover: HandedOver = NOT_HANDED_OVER,
) -> WaitedPass:
    """Return a pass of a fleet with one host."""
    states = FleetStates("2", {"web1": "web"}, {"web1": state}, lambda host: f"why {host}")
    result: dict[str, Any] = {"state": state}
    return WaitedPass(
        state == "upgraded",
        can_move,
        blocker or {},
        lambda: [f"web1 ({state})"],
        wake_at,
        states,
        lambda: result,
        handover,
    )


def test_it_ends_with_the_last_pass_and_all_that_the_passes_have_done(clock: Clock) -> None:
    passes, shown = Scripted(clock, made("upgrading"), made("upgraded")), Lines()
    passes.total.changed = True
    passes.total.admit(["web1"])
    passes.total.warnings["careful"] = None
    assert shown.wait(passes).until(clock.seconds + 60) == {
        "state": "upgraded",
        "changed": True,
        "admitted": 1,
        "transitions": ["web1"],
        "diff": [],
        "warnings": ["careful"],
    }
    assert shown == [
        "web1 upgrading: why web1",
        "-- 2: web 0/1; 1 upgrading, 0 waiting",
        "web1 upgraded",
        "-- 2: web 1/1; 0 upgrading, 0 waiting",
    ]
    assert shown.followed == [["web1 upgrading: why web1"]]


def test_a_fleet_that_is_upgraded_already_is_not_followed(clock: Clock) -> None:
    shown = Lines()
    assert shown.wait(Scripted(clock, made("upgraded"))).until(clock.seconds)["state"] == "upgraded"
    assert shown.followed == []


@pytest.mark.parametrize(
    ("blocker", "code", "message"),
    [
        (
            {},
            "stuck",
            "No host can continue without an operator. 2: web 0/1; 0 upgrading, 0 waiting, 1 failed. web1 (failed)",
        ),
        (
            {"code": "failure_budget", "reason": "too many failures"},
            "failure_budget",
            "Too many failures. 2: web 0/1; 0 upgrading, 0 waiting, 1 failed. web1 (failed)",
        ),
    ],
)
def test_it_stops_if_nothing_can_go_on(clock: Clock, blocker: dict[str, str], code: str, message: str) -> None:
    result = Lines().wait(Scripted(clock, made("failed", can_move=False, blocker=blocker))).until(clock.seconds + 60)
    assert result["failure"] == {"code": code, "message": message, "details": {"blockers": ["web1 (failed)"]}}
    assert result["state"] == "failed"


def test_it_stops_when_the_time_is_over(clock: Clock) -> None:
    passes = Scripted(clock, made("upgrading"), None, None)
    result = Lines().wait(passes).until(clock.seconds + 45)
    assert result["failure"]["code"] == "timeout"
    # As the running count is shown every 30 s.
    assert passes.waits == [30, 15]


def test_it_does_not_sleep_beyond_a_time_at_which_the_plan_changes(clock: Clock) -> None:
    passes = Scripted(clock, made("pending", wake_at=clock.seconds + 9), made("upgraded"))
    Lines().wait(passes).until(clock.seconds + 60)
    assert passes.waits == [10]


def test_the_running_count_is_shown_again_while_nothing_changes(clock: Clock) -> None:
    shown = Lines()
    count = "-- 2: web 0/1; 1 upgrading, 0 waiting"
    script = (made("upgrading"), None, made("upgrading"), made("upgraded"))
    shown.wait(Scripted(clock, *script)).until(clock.seconds + 600)
    assert shown.count(count) == 2


def test_a_live_view_takes_the_place_of_the_lines(clock: Clock) -> None:
    shown = Lines()
    shown.is_shown = True
    shown.wait(Scripted(clock, made("upgrading"), made("upgraded"))).until(clock.seconds + 60)
    assert shown == []


@pytest.mark.parametrize("code", ["unreachable", "redirected"])
def test_it_waits_longer_and_longer_for_a_consul_that_is_gone(code: Code, clock: Clock) -> None:
    began = clock.seconds
    shown = Lines()
    passes = Scripted(clock, made("upgrading"), *[UpgradeError(code, "Consul can't be reached.")] * 6, made("upgraded"))
    assert shown.wait(passes).until(clock.seconds + 600)["state"] == "upgraded"
    assert clock.seconds - began == 1 + 2 + 4 + 8 + 15 + 15
    assert f"[{code}] Consul can't be reached. No host is admitted meanwhile; the next try is in 15 s." in shown


def test_a_consul_that_stays_away_ends_it_with_what_was_done(clock: Clock) -> None:
    passes = Scripted(clock, made("upgrading"), UNREACHABLE, UNREACHABLE)
    passes.total.admit(["web1"])
    result = Lines().wait(passes).until(clock.seconds + 2)
    assert (result["failure"]["code"], result["transitions"]) == ("unreachable", ["web1"])


def test_a_first_pass_that_fails_is_the_result(clock: Clock) -> None:
    refused = UpgradeError("no_cap", "Nothing limits role web.")
    result = Lines().wait(Scripted(clock, refused)).until(clock.seconds + 60)
    assert result == {"changed": False, **refused.as_result()}


def test_another_failure_ends_it_at_once(clock: Clock) -> None:
    began = clock.seconds
    passes = Scripted(clock, made("upgrading"), UpgradeError("overtaken", "Another rollout began."))
    assert Lines().wait(passes).until(clock.seconds + 60)["failure"]["code"] == "overtaken"
    assert clock.seconds == began


CARRIED = HandedOver(id="h1", planners=("one",))
ANSWERED = "If this run ends, planner services (one) carry the rollout on. To stop admissions, run ansible-playbook convoy.upgrade.pause."
UNANSWERED = "No planner service carries the rollout at present. If this run ends before the rollout does, run the same command again."


@pytest.mark.parametrize(
    ("later", "noted", "said"),
    [
        # A service needs a second at least to answer.
        ([HandedOver(id="h1")], Continuation.HANDED_OVER, []),
        ([CARRIED], Continuation.CARRIED, [ANSWERED]),
        # It was ended, or refuses it now.
        ([CARRIED, HandedOver(id="h1")], Continuation.HANDED_OVER, [ANSWERED, f"Warning: {UNANSWERED}"]),
        ([CARRIED, HandedOver(id="h1"), CARRIED], Continuation.CARRIED, [ANSWERED, f"Warning: {UNANSWERED}", ANSWERED]),
        # Another run's handover may have another limit, also if a service carries it.
        ([CARRIED, HandedOver(id="h2", planners=("one",))], Continuation.NONE, [ANSWERED, "replaced by another one"]),
        # As by a push run.
        ([CARRIED, NOT_HANDED_OVER], Continuation.NONE, [ANSWERED, "has ended"]),
        ([NOT_HANDED_OVER, CARRIED], Continuation.CARRIED, ["has ended", ANSWERED]),
        # While Consul can't be reached, no one knows.
        ([CARRIED, None], Continuation.HANDED_OVER, [ANSWERED]),
    ],
)
def test_planner_services_continue_only_while_the_handover_of_this_run_is_there_and_one_has_answered(
    clock: Clock, later: list[HandedOver | None], noted: Continuation, said: list[str]
) -> None:
    script = [UNREACHABLE if one is None else made("upgrading", handover=one) for one in later]
    passes = Scripted(
        clock, made("upgrading", handover=HandedOver(id="h1")), *script, made("upgrading", can_move=False)
    )
    shown = Lines()
    shown.wait(passes).until(clock.seconds + 60)
    assert passes.noted[0] is Continuation.HANDED_OVER
    assert passes.noted[-1] is noted
    about = [line for line in shown if "planner service" in line.lower()][: len(said)]
    assert all(part in line for part, line in zip(said, about, strict=True)), shown


@pytest.mark.parametrize(
    ("later", "noted", "waits"),
    [(CARRIED, Continuation.CARRIED, [20]), (None, Continuation.HANDED_OVER, [20])],
)
def test_before_it_stops_it_waits_for_the_answer_of_a_planner_service(
    clock: Clock, later: HandedOver | None, noted: Continuation, waits: list[float]
) -> None:
    stuck = made("failed", can_move=False, handover=HandedOver(id="h1"))
    script = [None] if later is None else [made("failed", can_move=False, handover=later)]
    passes = Scripted(clock, stuck, *script)
    assert Lines().wait(passes).until(clock.seconds + 60)["failure"]["code"] == "stuck"
    assert noted_continuation() is noted
    assert passes.waits == waits


def test_what_a_handover_leaves_out_is_said_at_once_and_in_the_result(clock: Clock) -> None:
    warning = "Planner services carry the rollout to 2 only for web2 from now on."
    shown = Lines()
    passes = Scripted(clock, made("upgrading", handover=HandedOver(id="h1", warning=warning)), made("upgraded"))
    result = shown.wait(passes).until(clock.seconds + 60)
    assert shown[0] == f"Warning: {warning}"
    assert result["warnings"] == [warning]
    assert noted_continuation() is Continuation.NONE


def test_a_wait_without_a_handover_notes_that_no_service_continues(clock: Clock) -> None:
    note_continuation(Continuation.CARRIED)
    Lines().wait(Scripted(clock, made("upgrading", handover=HandedOver()), made("upgraded", handover=CARRIED))).until(
        clock.seconds + 60
    )
    assert noted_continuation() is Continuation.NONE
