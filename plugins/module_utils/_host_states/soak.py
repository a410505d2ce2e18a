# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Health: whether a host that reported the version has been healthy for long enough, and since when another host is silent.

All times are by planners' clocks, except those of a host's own reports. The deadline of a host also counts from its admission, so
a host whose clock is behind gets all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._fleet.health_marks import HealthMark
from .._rules.health_rules import HealthRules

PASSING = "passing"
# How far a time may be in the future by clocks that are kept in sync (seconds).
_MOST_SKEW = 60
# A check that changes ends no blocking query, so a planner that waits for one reads again after this many seconds.
READ_AGAIN_AFTER = 5.0


@dataclass(frozen=True, slots=True)
class HealthState:
    """What the health rules say of a host that reported the version.

    :param is_well: whether it counts as upgraded.
    :param is_broken: whether it counted as upgraded before, and is not healthy any more.
    :param is_lost: whether a check has kept it from counting as upgraded for longer than ``health.progress_deadline``.
    :param reason: why it does not count as upgraded.
    :param mark: the health mark to store; None for none.
    :param wake_at: when it may count as upgraded if nothing else changes (unix seconds).
    """

    is_well: bool
    is_broken: bool = False
    reason: str = ""
    mark: HealthMark | None = None
    wake_at: float | None = None
    is_lost: bool = False


def health_state(
    rules: HealthRules,
    now: float,
    version: str,
    mark: HealthMark | None,
    checks: Mapping[str, str] | None,
    reported: int | None = None,
    *,
    was_there: bool = False,
    last_sign: float | None = None,
) -> HealthState:
    """Return the health of a host that reported the version, and its new health mark.

    :param now: by the planner's clock (unix seconds).
    :param mark: the stored health mark, for any version.
    :param checks: check -> status, for the checks of the host; None if Consul was not asked, so that only the mark is known.
    :param reported: when the host reported the version, by its own clock (unix seconds); None if it keeps no record.
    :param was_there: whether it reported the version before the rollout began. It need not soak then, but its checks have to pass.
    :param last_sign: what :func:`silent_since` returns; None if the host is not lost if a check keeps failing.
    """
    known = mark if mark is not None and (mark.version, mark.reported) == (version, reported) else None
    if known is None and was_there:
        known = HealthMark(version, int(now) - rules.soak, True, reported)
    was_upgraded = known is not None and known.upgraded
    lost = known is not None and known.lost
    again = now + READ_AGAIN_AFTER if rules.consul_checks else None
    failing = [] if checks is None else failing_checks(rules, checks)
    if failing:
        new_mark = HealthMark(version, None, was_upgraded, reported, lost=was_upgraded)
        reason = f"{'was upgraded, and now ' if was_upgraded else f'reported {version}, and '}{', '.join(failing)}"
        # Planners wrote the mark when they first saw it fail. Before that, nothing shows for how long it has failed.
        is_seen = known is not None and known.since is None
        if was_upgraded or not is_seen or last_sign is None or rules.progress_deadline is None:
            return HealthState(False, is_broken=was_upgraded, reason=reason, mark=new_mark, wake_at=again)
        failed_for = now - max(last_sign, known.written_at if known is not None else 0)
        is_lost = failed_for > rules.progress_deadline
        if is_lost:
            reason += f", for {int(failed_for)} s, and health.progress_deadline is {rules.progress_deadline} s"
        return HealthState(False, reason=reason, mark=new_mark, wake_at=again, is_lost=is_lost)
    stored, behind = (known.since, known.since_behind) if known is not None else (None, None)
    if stored is None:
        if checks is None and rules.consul_checks:
            return HealthState(
                False, is_broken=lost, reason=f"reported {version}; its checks are not known yet", mark=known
            )
        stored, behind = int(now), None
    since, behind = soaks_since(stored, behind, now)
    ready = since + rules.soak
    if now >= ready:
        mark = HealthMark(version, since, True, reported, since_behind=behind if since == stored else None)
        return HealthState(True, mark=mark)
    event = "was unhealthy" if lost else f"reported {version}"
    return HealthState(
        False,
        is_broken=lost,
        reason=f"{event} and soaks for {int(ready - now + 0.999)} s more",
        mark=HealthMark(version, stored, was_upgraded, reported, lost, behind),
        wake_at=ready if again is None else min(ready, again),
    )


def soaks_since(stored: int, behind: int | None, now: float) -> tuple[int, int | None]:
    """Return since when something soaks, by the clock of this planner, and what is to be stored as ``behind``.

    A time in the future means that the clock of this planner or of the one that stored it is wrong. The time stays as it is, so that a clock that is
    behind ends no soak early for planners with right ones. Planners for which it is in the future count the whole soak from ``behind``.

    A difference of up to a minute is no wrong clock: it only makes a soak as much longer.

    :param stored: since when, by the planner that saw it first (unix seconds).
    :param behind: since when, by planners for which ``stored`` is in the future; None if there was none.
    """
    if stored <= now + _MOST_SKEW:
        return stored, behind
    behind = int(now) if behind is None else min(behind, int(now))
    return behind, behind


def failing_checks(rules: HealthRules, checks: Mapping[str, str]) -> list[str]:
    """Return a phrase for each required check that a host lacks or that does not pass; empty if all pass."""
    failing = []
    for name in rules.consul_checks:
        status = checks.get(name)
        if status is None:
            failing.append(f"has no check {name} in Consul")
        elif status != PASSING:
            failing.append(f"its check {name} is {status}")
    return failing


def silent_since(now: float, admitted_at: float | None, times: Mapping[str, Any] | None) -> float | None:
    """Return when an admitted host was admitted or last reported (unix seconds); None if that is not known.

    :param admitted_at: when a planner opened its gate.
    :param times: state -> time, from its record for this version; times in the future do not count.
    """
    signs = [float(at) for at in (times or {}).values() if at <= now]
    if admitted_at:
        signs.append(min(now, admitted_at))
    return max(signs, default=None)
