# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kinds of runs: rules as an operator gives them, and beside them what they mean, worked out by hand.

Nothing of the collection reads what is asked of it here: the caps of each set of roles, the budgets and the stages stand
beside the instructions, so that a mistake in reading instructions is seen too.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from .fleet import ALL, DATA, FLEET

_ORDER = {
    "role_order": {"data": "controller"},
    "group_mappings": {"data": ["compute$", "storage$"]},
    # A run that aborts and begins again removes entries of the history.
    "history": {"keep_rollouts": 2},
}


@dataclass(frozen=True)
class Rules:
    """Instructions, and what they mean.

    :param caps: roles -> how many of their hosts may be down at once.
    :param budgets: roles -> how many failed or lost hosts of them stop further admissions to these roles.
    :param canary: how many hosts of each role are the first stage; 0 for no stages. It waits for approval.
    :param frozen: whether no host may be admitted at any hour.
    """

    instructions: Mapping[str, Any]
    caps: Mapping[tuple[str, ...], int]
    budgets: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    soak: int = 0
    deadline: int | None = None
    canary: int = 0
    stage_soak: int = 0
    frozen: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """The instructions as an operator gives them in the middle: what other rules have besides is ended on purpose."""
        found = {"freezes": [], "windows": [], "failure_rules": {}, **self.instructions}
        ended = {"global": None, "fleet": None, "roles": {}}
        none: dict[str, dict[str, Any]] = {
            "rolling_rules": ended,
            "failure_rules": ended,
            "health": {"soak": None, "progress_deadline": None, "consul_checks": []},
        }
        return {**found, **{key: {**none[key], **found[key]} for key in none if found.get(key)}}


CAPS = Rules(
    {"rolling_rules": {"global": 1, "roles": {"data": 4, "compute": 3, "web": "40%"}, "fleet": 5}, **_ORDER},
    {("controller",): 1, DATA: 4, ("compute",): 3, ("web",): 2, ALL: 5},
)
HEALTH = Rules(
    {
        "rolling_rules": {"global": 2, "roles": {"data": 9, "compute": "50%", "web": 3}, "fleet": 11},
        **_ORDER,
        "health": {"soak": 2, "progress_deadline": "6s"},
        "failure_rules": {"fleet": 6},
    },
    {("controller",): 2, DATA: 9, ("compute",): 6, ("web",): 3, ALL: 11},
    budgets={ALL: 6},
    soak=2,
    deadline=6,
)
BUDGET = Rules(
    {
        "rolling_rules": {"global": 2, "roles": {"data": 6}},
        **_ORDER,
        "failure_rules": {"fleet": 4, "roles": {"data": "10%", "web": 2}},
    },
    # A group's cap holds for its roles together, and the global one for each role outside of it. 10% of 17 is 1.
    {("controller",): 2, DATA: 6, ("web",): 2},
    budgets={ALL: 4, DATA: 1, ("web",): 2},
)
PLANES = Rules(
    {
        "rolling_rules": {"global": 3, "roles": {"data": 6}},
        **_ORDER,
        "stages": [{"name": "canary", "hosts": 1, "soak": 1, "approve": True}, {"name": "rest"}],
    },
    {("controller",): 3, DATA: 6, ("web",): 3},
    canary=1,
    stage_soak=1,
)
WIDER = Rules(
    {**PLANES.instructions, "stages": [{"name": "canary", "hosts": 2, "soak": 1, "approve": True}, {"name": "rest"}]},
    PLANES.caps,
    canary=2,
    stage_soak=1,
)
SOAK = Rules(
    {"rolling_rules": {"global": 2, "roles": {"data": 6}}, **_ORDER, "health": {"soak": 2}},
    {("controller",): 2, DATA: 6, ("web",): 2},
    soak=2,
)
# Soaks that are longer than what the judge allows for reads that took their time.
LONG_SOAKS = Rules(
    {
        "rolling_rules": {"global": 4, "roles": {"data": 12}},
        **_ORDER,
        "health": {"soak": 9},
        "stages": [{"name": "canary", "hosts": 1, "soak": 9, "approve": True}, {"name": "rest"}],
    },
    {("controller",): 4, DATA: 12, ("web",): 4},
    soak=9,
    canary=1,
    stage_soak=9,
)
# A role that nothing limits is opened by a key of its own.
LOOSE = Rules(
    {"rolling_rules": {"global": "unlimited", "roles": {"controller": 1, "data": 5, "storage": 2}}, **_ORDER},
    {("controller",): 1, DATA: 5, ("storage",): 2},
)
FROZEN = Rules(
    {**LOOSE.instructions, "freezes": [{"from": "2020-01-01", "to": "2099-01-01", "reason": "fire"}]},
    LOOSE.caps,
    frozen=True,
)


def closed_window(now: float) -> dict[str, Any]:
    """Return a window that is not open for days around a time (unix seconds), whatever the clocks are set to meanwhile."""
    day = datetime.fromtimestamp(now, timezone.utc) + timedelta(days=3)
    return {"days": [day.strftime("%a").lower()], "from": "00:00", "to": "00:00"}


def shut(now: float) -> Rules:
    """Return rules by which no host may be admitted for days around a time (unix seconds)."""
    return Rules({**CAPS.instructions, "windows": [closed_window(now)]}, CAPS.caps, frozen=True)


@dataclass(frozen=True)
class Kind:
    """A kind of run.

    :param rules: those that it begins with, and those that the operator changes to.
    :param insisting: whether each planner names version and rules in each pass, or goes on with those of the ledger.
    :param failing: how likely a host fails, and stays so for a while.
    :param dying: how likely a host dies for longer than the deadline.
    :param commands: what the operator runs; another one holds hosts meanwhile.
    """

    name: str
    rules: Sequence[Rules]
    insisting: bool = False
    failing: float = 0.05
    dying: float = 0.0
    commands: Sequence[str] = ("pause",)


def kinds(now: float) -> tuple[Kind, ...]:
    """Return the kinds of runs that begin at a time (unix seconds)."""
    return (
        Kind("caps", (CAPS,), insisting=True),
        Kind("health", (HEALTH,), dying=0.08, commands=("pause", "retry")),
        Kind("budget", (BUDGET,), failing=0.25, commands=("pause", "retry", "retry")),
        Kind("stages", (PLANES, WIDER), commands=("pause", "approve", "approve", "change")),
        Kind("soak", (SOAK,), commands=("pause", "retry")),
        Kind("changes", (LOOSE, CAPS, FROZEN, shut(now)), commands=("pause", "change", "change", "change", "abort")),
    )


# The share of runs in which a seed decides the rules.
_SEEDED = 0.3
# The share of runs with long soaks, which take longer than others.
_LONG_SOAKS = 0.06
# So many of all runs end with an operator who does only what the status advises.
_ADVISED = 0.5


@dataclass(frozen=True)
class Schedule:
    """What a seed stands for.

    :param rollback: after how many upgraded hosts the operator takes the fleet back, None for never.
    :param restore: whether a snapshot is taken and restored on the way.
    """

    seed: int
    kind: Kind
    rollback: int | None
    restore: bool

    @property
    def is_advised(self) -> bool:
        """Whether the operator does at the end only what the status advises.

        After a restore, an operator has to know what came back: hosts that have done their upgrade do not report it again during a hold.
        """
        return not self.restore and random.Random(f"advised {self.seed}").random() < _ADVISED

    def least_admissions(self, own_moves: int) -> int:
        """Return how many hosts a run admits at least: one that goes back takes those back that had been upgraded, and not all.

        :param own_moves: how often a host reported another version without an admission.
        """
        return 20 if self.rollback is None else 2 * self.rollback - own_moves

    @property
    def name(self) -> str:
        """What is printed of it."""
        more = [f"rollback after {self.rollback}"] if self.rollback else []
        return ", ".join([self.kind.name, *more, *(["restore"] if self.restore else [])])


def seeded_kind(seed: int) -> Kind:
    """Return a kind of run with rules that a seed decides: caps as numbers and percentages, budgets, soaks, deadlines and stages."""
    chance = random.Random(f"rules {seed}")
    canary, soak = chance.choice((0, 0, 1, 2)), chance.choice((0, 0, 1, 2))
    deadline = chance.choice((None, None, 6))
    # Other caps and budgets can come at any time. What other stages and soaks mean in the middle is for the kinds above.
    rules = tuple(_seeded_rules(chance, canary, soak, deadline) for _each in range(2))
    commands = ("pause", "retry", "change", *(("approve", "approve") if canary else ()))
    return Kind(
        "seeded",
        rules,
        failing=chance.choice((0.02, 0.1, 0.2)),
        dying=0.05 if deadline is not None else 0.0,
        commands=commands,
    )


def _seeded_rules(chance: random.Random, canary: int, soak: int, deadline: int | None) -> Rules:
    def cap(of: int, least: int) -> tuple[int | str, int]:
        """Return a cap as an operator writes it, and how many hosts that is."""
        if chance.random() < 0.5:
            count = chance.randint(least, max(least, of // 2))
            return count, count
        percent = chance.randint(10, 60)
        return f"{percent}%", max(1, of * percent // 100)

    def size(roles: tuple[str, ...]) -> int:
        return sum(role in roles for role in FLEET.values())

    given: dict[str, Any] = {}
    caps: dict[tuple[str, ...], int] = {}
    # The global cap holds for the roles of a group together.
    places = {"controller": ("controller",), "web": ("web",), "data": DATA}
    for name in ("controller", "compute", "storage", "web", "data"):
        if chance.random() < 0.5:
            roles = places.get(name, (name,))
            given[name], caps[roles] = cap(size(roles), 1)
    everywhere: int | str = "unlimited"
    if chance.random() < 0.7:
        everywhere = chance.randint(1, 4)
        caps |= {roles: everywhere for name, roles in places.items() if name not in given}
    rolling: dict[str, Any] = {"global": everywhere, "roles": given}
    if everywhere == "unlimited" or chance.random() < 0.5:
        rolling["fleet"], caps[ALL] = cap(len(FLEET), 4)
    instructions: dict[str, Any] = {"rolling_rules": rolling, **_ORDER}
    budgets: dict[tuple[str, ...], int] = {}
    if chance.random() < 0.5:
        failures: dict[str, Any] = {}
        failures["fleet"], budgets[ALL] = cap(len(FLEET), 3)
        if chance.random() < 0.5:
            of_data, budgets[DATA] = cap(size(DATA), 2)
            failures["roles"] = {"data": of_data}
        instructions["failure_rules"] = failures
    health = {**({"soak": soak} if soak else {}), **({"progress_deadline": deadline} if deadline is not None else {})}
    if health:
        instructions["health"] = health
    if canary:
        first = {"name": "canary", "hosts": canary, "soak": 1, "approve": True}
        instructions["stages"] = [first, {"name": "rest"}]
    return Rules(instructions, caps, budgets, soak, deadline, canary, stage_soak=1 if canary else 0)


def schedule(seed: int, now: float) -> Schedule:
    """Return what a seed stands for. Kinds take turns; in some runs a seed decides the rules too.

    :param now: when the run begins (unix seconds).
    """
    chance = random.Random(f"schedule {seed}")
    of_run = kinds(now)
    kind = of_run[seed % len(of_run)]
    if random.Random(f"seeded {seed}").random() < _SEEDED:
        kind = seeded_kind(seed)
    if random.Random(f"soak long {seed}").random() < _LONG_SOAKS:
        kind = Kind("long soaks", (LONG_SOAKS,), commands=("pause", "retry", "approve"))
    can_go_back = not kind.insisting and kind.rules[0].deadline is None
    rollback = chance.randint(8, 16) if can_go_back and chance.random() < 0.4 else None
    return Schedule(seed, kind, rollback, restore=rollback is None and chance.random() < 0.3)
