# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A fleet in a few numbers and sentences, whatever its size: counts by role, reasons with some hosts each, and the forecast."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from .._common.names import in_order
from .._fleet.fleet import HostRecord, Snapshot
from .._fleet.holds import Hold
from .._host_states.state_names import FAILED, HELD, LOST, PENDING, STATES, UPGRADED, UPGRADING
from .._planner.explanations import LIMIT, POST_UPGRADE_FAILED
from .._planner.plan import HostView, Plan, grouped_reasons, rollout_blockers
from .operator_needs import operator_needs
from .stages import as_plain, stage_summaries

# How many hosts and waves are named.
_MOST_HOSTS = 8
_MOST_WAVES = 12
# How many hosts the lists of a result have.
MOST_LISTED = 100
# The option that asks for all hosts.
ALL = "all"


def fleet_summary(hosts: Mapping[str, HostView]) -> dict[str, Any]:
    """Return ``roles``, ``counts`` and ``reasons`` of a result. Takes time linear in hosts.

    Hosts that a job is not for are left out.

    :returns: ``roles``: role -> ``hosts`` (their number), ``states`` and ``versions`` with numbers. ``counts``: state -> number of hosts.
        ``reasons``: why hosts are not upgraded, each once, see :func:`reasons`.
    """
    roles: dict[str, dict[str, Any]] = {}
    for view in hosts.values():
        if view.outside:
            continue
        found = roles.setdefault(view.role, {"hosts": 0, "states": dict.fromkeys(STATES, 0), "versions": {}})
        found["hosts"] += 1
        found["states"][view.state] += 1
        version = view.version or ""
        found["versions"][version] = found["versions"].get(version, 0) + 1
    counts = {state: sum(one["states"][state] for one in roles.values()) for state in STATES}
    return {"roles": {role: roles[role] for role in in_order(roles)}, "counts": counts, "reasons": reasons(hosts)}


def reasons(hosts: Mapping[str, HostView]) -> list[dict[str, Any]]:
    """Return why hosts are not upgraded, each reason once: ``state``, ``reason`` and its code ``cause``, ``hosts``, and their ``count``.

    Of each state and cause, the reasons after the first 100 become one.

    States that need an operator come first, and hosts whose post-upgrade tasks failed last.
    """
    found: dict[tuple[str, str, str], list[str]] = {}
    for host, view in hosts.items():
        if view.state != UPGRADED or view.cause == POST_UPGRADE_FAILED:
            found.setdefault((view.state, view.reason, view.cause), []).append(host)
    order = {state: at for at, state in enumerate((FAILED, LOST, UPGRADING, HELD, PENDING, UPGRADED))}
    return [
        {"state": state, "reason": reason, "cause": cause, **_some(names)}
        for (state, reason, cause), names in sorted(grouped_reasons(found).items(), key=lambda one: order[one[0][0]])
    ]


def listed(hosts: Sequence[Any], requested: Collection[str]) -> list[Any]:
    """Return the first hosts of a list, or all for those who ask for all.

    :param requested: as for :func:`hosts_as_result`.
    """
    return [*(hosts if ALL in requested else hosts[:MOST_LISTED])]


def more(hosts: Sequence[Any], requested: Collection[str]) -> int:
    """Return how many hosts :func:`listed` leaves out."""
    return 0 if ALL in requested else max(0, len(hosts) - MOST_LISTED)


def rollout_summary(snapshot: Snapshot, plan: Plan, requested: Collection[str] = ()) -> dict[str, Any]:
    """Return what a result has on the whole rollout: what :func:`rollout_blockers` returns, ``post_upgrade`` and ``more_post_upgrade``, ``stages``,
    and ``needs_operator``.

    :param requested: as for :func:`hosts_as_result`.
    """
    return {
        **rollout_blockers(plan),
        "post_upgrade": listed(plan.post_upgrade, requested),
        "more_post_upgrade": more(plan.post_upgrade, requested),
        "stages": as_plain(stage_summaries(snapshot, plan)),
        "needs_operator": [one.plain() for one in operator_needs(snapshot, plan)],
    }


def forecast_summary(plan: Plan) -> dict[str, Any]:
    """Return the forecast of a plan.

    :returns: ``waves`` with the first ones, each with ``hosts``, ``count`` and ``seconds``; ``more_waves`` and ``more_hosts`` for the numbers of
        the others; and ``seconds`` of all, 0 if no duration is known.
    """
    waves, seconds = plan.waves, plan.wave_seconds
    first = [
        {**_some(wave), "seconds": takes}
        for wave, takes in zip(waves[:_MOST_WAVES], seconds[:_MOST_WAVES], strict=True)
    ]
    rest = waves[_MOST_WAVES:]
    return {"waves": first, "more_waves": len(rest), "more_hosts": sum(map(len, rest)), "seconds": float(sum(seconds))}


def blocked_summary(plan: Plan, hosts: Mapping[str, HostView]) -> dict[str, Any]:
    """Return the hosts that a plan does not expect to admit: ``outside`` of its limit, and the ``reasons`` of the others.

    :param hosts: host -> view after the plan's admissions.
    """
    expected = {host for wave in plan.waves for host in wave}
    left = {
        host: view for host, view in hosts.items() if host not in expected and view.state not in (UPGRADED, UPGRADING)
    }
    outside = [host for host, view in left.items() if view.cause == LIMIT]
    return {
        "outside": _some(outside),
        "reasons": reasons({host: view for host, view in left.items() if view.cause != LIMIT}),
    }


def holds_summary(
    holds: Iterable[tuple[str, str, Hold]],
    hosts: Mapping[str, HostView],
    former_role: Callable[[str], str | None] = lambda _host: None,
) -> list[dict[str, Any]]:
    """Return each hold with its ``scope`` and ``name``, and how many hosts it covers: ``hosts`` in all, ``upgraded`` of them.

    :param former_role: returns the role that a host had before, whose hold covers it too.
    """
    by_role: dict[str, list[HostView]] = {}
    for host, view in hosts.items():
        for role in dict.fromkeys((view.role, former_role(host) or view.role)):
            by_role.setdefault(role, []).append(view)

    def covered(scope: str, name: str) -> Collection[HostView]:
        if scope == "global":
            return hosts.values()
        return by_role.get(name, ()) if scope == "role" else [hosts[name]] if name in hosts else ()

    return [
        {
            "scope": scope,
            "name": name,
            "key": hold.key,
            "reason": hold.reason,
            "by": hold.by,
            "at": hold.at,
            "hosts": len(covered(scope, name)),
            "upgraded": sum(1 for view in covered(scope, name) if view.state == UPGRADED),
        }
        for scope, name, hold in holds
    ]


def releases_summary(records: Mapping[str, HostRecord], hosts: Collection[str]) -> dict[str, int]:
    """Return the releases of the node agents that reported last: release -> number of hosts, the most frequent first."""
    found: dict[str, int] = {}
    for host in hosts:
        record = records.get(host)
        if record is not None and record.release:
            found[record.release] = found.get(record.release, 0) + 1
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def hosts_as_result(plan: Plan, hosts: Mapping[str, HostView], requested: Collection[str]) -> dict[str, Any]:
    """Return the hosts that a caller asks for: ``hosts``; and ``status``, ``waves`` and ``wave_seconds`` for those who ask for all.

    :param hosts: host -> view.
    :param requested: their names, or ``all``. Unknown names are left out.
    """
    if ALL not in requested:
        return {"hosts": {host: asdict(hosts[host]) for host in requested if host in hosts}}
    return {
        "hosts": {host: asdict(view) for host, view in hosts.items()},
        "status": {state: [host for host, view in hosts.items() if view.state == state] for state in STATES},
        "waves": [*plan.waves],
        "wave_seconds": [*plan.wave_seconds],
    }


def _some(hosts: Sequence[str]) -> dict[str, Any]:
    """Return the first hosts, and the number of all."""
    return {"hosts": [*hosts[:_MOST_HOSTS]], "count": len(hosts)}
