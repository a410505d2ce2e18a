# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The drawing fits on terminals of many sizes, and uses characters that they support."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.operator_needs import OperatorNeed
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.progress import (
    HostProgress,
    RoleProgress,
    RolloutProgress,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._observe.stages import StageSummary
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe import screen
from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.screen import drawing, reason_not_to_draw
from rich.console import Console

NOW = 1000.0
NOTE = "No host is admitted: the rollout is paused by ann: logins fail"
FOUND = RolloutProgress(
    version="2",
    came_from="1",
    state="running",
    bars=(RoleProgress("compute", 8, 2, 2, 1, 3), RoleProgress("controller", 2, 2, 0, 0, 0)),
    flights=(
        HostProgress("compute3", "compute", "nginx", "stop", "upgrading", 935.0),
        HostProgress("c9", "compute", "", "", "admitted", None),
    ),
    more=0,
    notes=(),
    left=300.0,
    judged_by=4,
    at=NOW,
    over=False,
    done=False,
)


def drawn(found: RolloutProgress, width: int = 80, height: int = 24, now: float = NOW, **more: Any) -> list[str]:
    stream = io.StringIO()
    console = Console(
        file=stream, width=width, height=height, color_system=None, markup=False, highlight=False, emoji=False
    )
    console.print(drawing(found, now, width, height, **more))
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_bars_hosts_and_remaining_time() -> None:
    assert drawn(FOUND) == [
        "2 from 1: 4 of 10 hosts upgraded, about 5 min left",
        "compute     ██████▓▓▓▓▓▓XXX░░░░░░░░░░░  2/8  2 upgrading  3 waiting  1 failed",
        "controller  ██████████████████████████  2/2",
        "compute3  1:05  nginx, step stop",
        "c9              admitted",
    ]


def test_times_advance_between_two_updates() -> None:
    lines = drawn(FOUND, now=NOW + 200)

    assert lines[0].endswith("about 2 min left")
    assert lines[3].startswith("compute3  4:25")


def test_a_terminal_without_block_characters_gets_letters() -> None:
    assert "######>>>>>>XXX..........." in drawn(FOUND, signs="#>X.")[1]


def test_blockers_are_below_the_hosts() -> None:
    assert drawn(replace(FOUND, notes=(NOTE,)))[-1] == NOTE


def test_if_consul_is_unreachable_the_age_of_the_state_is_shown() -> None:
    assert (
        drawn(FOUND, now=NOW + 65, away="Consul can't be reached")[-1]
        == "Shown as of 1:05 ago: Consul can't be reached"
    )


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("height", [8, 24, 50])
def test_it_fits_on_any_terminal(width: int, height: int) -> None:
    bars = tuple(RoleProgress(f"role-with-a-long-name-{number}", 9, 3, 6, 0, 0) for number in range(30))
    flights = tuple(
        HostProgress(f"host-with-a-long-name{number}", "r", "service" * 9, "stop", "", 1.0) for number in range(99)
    )
    lines = drawn(replace(FOUND, bars=bars, flights=flights, more=500, notes=(NOTE * 3,)), width, height)

    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)


def test_bars_of_finished_roles_are_left_out_first() -> None:
    bars = tuple(RoleProgress(f"role{number}", 1, int(number < 20), 0, 0, int(number >= 20)) for number in range(25))
    lines = drawn(replace(FOUND, bars=bars), height=24)

    assert [f"role{number}" for number in range(20, 25)] == [
        line.split()[0] for line in lines if line.startswith("role2") and "0/1" in line
    ]
    assert any(line.endswith("more roles") for line in lines)


def test_names_are_not_markup() -> None:
    lines = drawn(
        replace(FOUND, bars=(RoleProgress("[red]web[/red]", 1, 0, 1, 0, 0),), notes=("[bold]paused :smile:",))
    )

    assert any("[red]web[/red]" in line for line in lines)
    assert lines[-1] == "[bold]paused :smile:"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_streams_without_a_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert reason_not_to_draw(_Terminal()) is None
    assert reason_not_to_draw(io.StringIO()) == ""
    monkeypatch.setenv("TERM", "dumb")
    assert reason_not_to_draw(_Terminal()) == ""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert reason_not_to_draw(_Terminal()) == ""


def test_without_the_library_a_warning_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(screen, "LIBRARY_ERROR", "No module named 'rich'")

    assert "pip install rich" in str(reason_not_to_draw(_Terminal()))


STAGES = tuple(
    StageSummary(name, state, "1 of each role", hosts, upgraded, 0, 0, 600, name == "canary", until, "")
    for name, state, hosts, upgraded, until in (
        ("canary", "done", 1, 1, 0.0), ("early", "soak", 7, 7, 1000.0), ("rest", "waiting", 53, 0, 0.0),
    )
)  # fmt: skip
NEED = OperatorNeed("approval", "Stage canary is done and needs an approval.", "approve", {"stage": "canary"}, "abort")


def test_stages_are_below_the_total_and_the_awaited_operator_with_the_command_at_the_end() -> None:
    found = replace(FOUND, notes=("Stage early", NOTE), stages=STAGES, needs=(NEED, NEED))

    lines = drawn(found, command=lambda playbook, variables: f"ansible-playbook {playbook}.yml {dict(variables)}")

    at = time.strftime("%H:%M:%S", time.localtime(1000))
    assert lines[1] == f"stages: canary 1/1 > early 7/7, soaks until {at} > rest 0/53"
    assert lines[-3:] == [
        NOTE,
        "Needs an operator: Stage canary is done and needs an approval.",
        "  ansible-playbook approve.yml {'stage': 'canary'}",
    ]
    assert "Stage early" not in lines
    assert drawn(found)[-1].startswith("Needs an operator: ")


def test_stages_and_a_command_leave_room_for_roles_and_hosts_on_a_small_terminal() -> None:
    found = replace(FOUND, stages=STAGES, needs=(NEED,))
    lines = drawn(found, width=40, height=12, command=lambda *_given: "x" * 90)
    assert len(lines) <= 12
    assert any(line.startswith("compute3") for line in lines)
