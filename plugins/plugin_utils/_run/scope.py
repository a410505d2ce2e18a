# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The hosts of a run: those that Ansible upgrades, in the order of the plan, and those that upgrade themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._common.names import did_you_mean, listing, plural
from ...module_utils._fleet.host_patterns import select_hosts
from ...module_utils._host_states.state_names import FAILED, HELD, LOST, PENDING, UPGRADED, UPGRADING
from ...module_utils._rules.instructions import REVERSED
from .._services.planes import CONTROL_PLANE
from .._services.steps import POST, REPLACEMENT

# The plays of a run, as its playbooks name them.
FIRST, CONTROL, DATA = "dataplane_first", "controlplane", "dataplane"


@dataclass(frozen=True, slots=True)
class RunScope:
    """The hosts of a run by play.

    :param pushed: play -> the hosts that Ansible upgrades in it, in the order of the plan.
    :param waves: the sizes of the waves of the play ``controlplane``.
    :param validate: the pushed hosts on which no run has stopped or replaced anything yet.
    :param plays: play -> all hosts of the run in it, including those that upgrade themselves.
    :param left_out: the hosts that are in no play because their upgrade paths can't be computed.
    :param held: the pushed hosts that an earlier run found to hold themselves.
    :param resumed: the pushed hosts that have begun in an earlier run.
    :param waiting: sentences on the hosts that are in no play because they wait for hosts outside the run, as far as the plan does not name them.
    """

    pushed: Mapping[str, tuple[str, ...]]
    waves: tuple[int, ...]
    validate: tuple[str, ...]
    plays: Mapping[str, tuple[str, ...]]
    left_out: tuple[str, ...] = ()
    held: tuple[str, ...] = ()
    resumed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()

    @property
    def pushed_hosts(self) -> tuple[str, ...]:
        """Return all hosts that Ansible upgrades, those of the control plane first."""
        return tuple(host for play in (CONTROL, FIRST, DATA) for host in self.pushed[play])

    def with_last(self, last: Collection[str], fleet: Mapping[str, str]) -> RunScope:
        """Return the same run with some hosts after the other hosts of their roles, in the places that the plan has for the roles.

        A wave with such a host and others of its role becomes two, as the hosts of a wave go at the same time.

        :param fleet: host -> role.
        """

        def ordered(hosts: Sequence[str]) -> tuple[str, ...]:
            left: dict[str, list[str]] = {}
            for host in sorted(hosts, key=lambda one: one in last):
                left.setdefault(fleet[host], []).append(host)
            return tuple(left[fleet[host]].pop(0) for host in hosts)

        pushed = {play: ordered(hosts) for play, hosts in self.pushed.items()}
        waves: list[tuple[str, ...]] = []
        for wave in _split(pushed[CONTROL], self.waves):
            firsts = {fleet[host] for host in wave if host not in last}
            later = tuple(host for host in wave if host in last and fleet[host] in firsts)
            waves += [tuple(host for host in wave if host not in later), later]
        pushed[CONTROL] = tuple(host for wave in waves for host in wave)
        return replace(self, pushed=pushed, waves=tuple(len(wave) for wave in waves if wave))

    def batches(self, others: Iterable[str]) -> list[list[str]]:
        """Return the waves of the control plane, each with another host that ends at once, as long as there is one.

        If all hosts of a batch become unreachable, Ansible ends the run.

        :param others: hosts that may be added, the best ones first.
        """
        left = iter([host for host in others if host not in self.pushed[CONTROL]])
        return [[*wave, *islice(left, 1)] for wave in _split(self.pushed[CONTROL], self.waves)]

    def without(self, hosts: Collection[str]) -> RunScope:
        """Return the same run without some of its hosts."""
        waves = [sum(host not in hosts for host in wave) for wave in _split(self.pushed[CONTROL], self.waves)]
        return replace(
            self,
            pushed={play: tuple(host for host in found if host not in hosts) for play, found in self.pushed.items()},
            waves=tuple(size for size in waves if size),
            validate=tuple(host for host in self.validate if host not in hosts),
            held=tuple(host for host in self.held if host not in hosts),
            resumed=tuple(host for host in self.resumed if host not in hosts),
            plays={play: tuple(host for host in found if host not in hosts) for play, found in self.plays.items()},
        )


def _split(hosts: Sequence[str], sizes: Iterable[int]) -> list[tuple[str, ...]]:
    """Return the waves of some sizes."""
    rest = iter(hosts)
    return [tuple(islice(rest, size)) for size in sizes]


def run_scope(
    plan: Mapping[str, Any],
    upgrade_roles: Mapping[str, Any],
    composition: Mapping[str, Any],
    *,
    part: str = "all",
    role: str = "",
    limit: Collection[str] = (),
    retry_failed: bool = False,
    left_out: Collection[str] = (),
) -> RunScope:
    """Return which hosts each play of a run upgrades.

    A host of the data plane is upgraded in one of three plays:

    - before the control plane, if hosts of the control plane wait for it and it waits for none, as in a rollback
    - in the waves of the control plane, if it goes between two hosts of the control plane, as a canary does
    - after the control plane otherwise

    :param plan: a result of ``consul_upgrade_plan``, in check mode.
    :param composition: a result of ``compose_upgrade_tasks``.
    :param part: ``all``, a plane, ``role`` for one role alone, or ``after`` for no host.
    :param limit: host patterns; empty for all.
    :param retry_failed: whether failed hosts are retried.
    :param left_out: hosts whose upgrade paths can't be computed. They are in no play, and hosts that go after them wait.
    :raises UpgradeError: ``unknown_role``, ``unknown_limit``, ``limit_waits``, ``control_plane_first``, ``data_plane_first``.
    """
    hosts: Mapping[str, Mapping[str, Any]] = plan["hosts"]
    roles = {view["role"] for view in hosts.values()}
    if part == "role" and role not in roles:
        raise UpgradeError(
            "unknown_role",
            f"role: no host has the role {role!r}{did_you_mean(role, roles) or '.'} The roles are {listing(sorted(roles), 10) or 'none'}.",
        )
    control = {name for name, data in upgrade_roles.items() if (data or {}).get("plane") == CONTROL_PLANE}
    members = {host: view["role"] for host, view in hosts.items()}
    of_role = {view["role"]: view["group"] for view in hosts.values() if view["group"]}
    scope = select_hosts(limit, members, of_role) if limit else members
    targets = [host for host, view in hosts.items() if host in scope and _is_in_part(view, control, part, role)]
    # Hosts that the plan would admit have not begun.
    fresh = {one["host"] for one in plan["transitions"] if one["from"] == PENDING}
    order = _Order(plan)
    included = set(targets)
    outside = [host for host in hosts if host not in included]
    free = _without_blocked(hosts, targets, outside, order, part, fresh, limited=bool(limit))
    kept = {*free}
    waiting = _waiting_lines(plan, [host for host in targets if host not in kept], outside, order, scope)
    targets = free
    # A host that holds itself is validated again, which may end its hold.
    held = {host for host in targets if hosts[host]["state"] == HELD and not hosts[host]["holds_itself"]}
    skipped_states = {UPGRADED} | (set() if retry_failed else {FAILED, LOST})
    missed = [host for host in targets if host in left_out and host not in held and hosts[host]["state"] != UPGRADED]
    out = set(missed)
    targets = [host for host in targets if host not in out]
    pushed = [
        host
        for host in targets
        if hosts[host]["role"] in composition["roles"]
        and host not in held
        and hosts[host]["state"] not in skipped_states
    ]
    chosen = set(pushed)
    begun = [host for host in pushed if hosts[host]["state"] in (UPGRADING, FAILED, LOST) and host not in fresh]
    resumed = set(begun)
    waves = [[host for host in wave if host in chosen and host not in resumed] for wave in plan["waves"]]
    expected = {host for wave in waves for host in wave}
    # Hosts that the plan does not expect to admit ask too, so that the run prints why they are not admitted.
    rest = [host for host in pushed if host not in expected and host not in resumed]
    groups = [wave for wave in [begun, *waves, rest] if wave]
    play = _plays(hosts, targets, control, order)
    control_waves = [found for wave in groups if (found := [host for host in wave if play[host] == CONTROL])]
    return RunScope(
        pushed={
            FIRST: tuple(host for wave in groups for host in wave if play[host] == FIRST),
            CONTROL: tuple(host for wave in control_waves for host in wave),
            DATA: tuple(host for wave in groups for host in wave if play[host] == DATA),
        },
        waves=tuple(len(wave) for wave in control_waves),
        validate=tuple(host for host in pushed if _has_all_services(hosts[host], plan["version"])),
        held=tuple(host for host in pushed if hosts[host]["holds_itself"]),
        resumed=tuple(host for host in pushed if host in resumed),
        plays={name: tuple(host for host in targets if play[host] == name) for name in (FIRST, CONTROL, DATA)},
        left_out=tuple(missed),
        waiting=tuple(waiting),
    )


def _has_all_services(view: Mapping[str, Any], version: str) -> bool:
    """Return whether nothing on a host was stopped or replaced yet, so that it can be validated. A retry does not change that.

    Of an upgrade to another version that reported no steps, it is not known.
    """
    is_known = view["begun"] in (None, version) or view["steps"]
    return bool(is_known) and not {*view["steps"]} & {*REPLACEMENT}


def resumed_lines(plan: Mapping[str, Any], scope: RunScope) -> list[str]:
    """Return a sentence on the hosts whose upgrade an earlier run began and did not finish; none if there are no such hosts.

    :param plan: a result of ``consul_upgrade_plan``.
    """
    found: dict[str, list[str]] = {}
    for host in scope.resumed:
        view = plan["hosts"][host]
        if not (view["started"] or view["begun"]):
            continue
        # A task group of the step stop may run again.
        done = [one for one in view.get("done") or () if not one.startswith("stop/")]
        found.setdefault(f"after {done[-1]}" if done else "with the first step", []).append(host)
    return [
        f"An earlier run began the upgrade of {listing(hosts, 5)} and did not finish it; this one continues {where}."
        for where, hosts in found.items()
    ]


def forks_lines(plan: Mapping[str, Any], scope: RunScope, forks: int) -> list[str]:
    """Return a sentence if Ansible has fewer forks than hosts may be upgraded at the same time; none otherwise.

    :param plan: a result of ``consul_upgrade_plan`` with all hosts.
    :param forks: how many hosts Ansible works on at the same time.
    """
    pushed, begun = set(scope.pushed_hosts), len(scope.resumed)
    waves = [sum(host in pushed for host in wave) for wave in plan["waves"]]
    most = max([begun + sum(waves[:1]), *waves[1:]])
    if most <= forks:
        return []
    return [
        f"The rules allow {plural(most, 'host')} at the same time, but Ansible has {plural(forks, 'fork')} (-f) and upgrades no more hosts than "
        f"that. To use all slots: -f {most}."
    ]


class _Order:
    """The order of hosts: by their stages, and within a stage by their roles."""

    def __init__(self, plan: Mapping[str, Any]) -> None:
        """Read the order from a result of ``consul_upgrade_plan``."""
        self._hosts: Mapping[str, Mapping[str, Any]] = plan["hosts"]
        direct: Mapping[str, Collection[str]] = plan.get("order") or {}
        self._firsts: dict[str, set[str]] = {}
        for role in direct:
            found: set[str] = set()
            left = [role]
            while left:
                new = set(direct.get(left.pop(), ())) - found
                found |= new
                left += new
            self._firsts[role] = found

    def place(self, host: str) -> tuple[int, str]:
        """Return the place of a host: the number of its stage, and its role."""
        view = self._hosts[host]
        return view.get("stage", 0), view["role"]

    def comes_before(self, one: tuple[int, str], other: tuple[int, str]) -> bool:
        """Return whether the hosts of one place go before those of another."""
        return one[0] < other[0] or (one[0] == other[0] and one[1] in self._firsts.get(other[1], ()))

    def blocking(self, hosts: Iterable[str]) -> dict[tuple[int, str], list[str]]:
        """Return place -> those of its hosts that block later places."""
        found: dict[tuple[int, str], list[str]] = {}
        for host in hosts:
            view = self._hosts[host]
            if view.get("blocks", view["state"] != UPGRADED):
                found.setdefault(self.place(host), []).append(host)
        return found


def hosts_behind(plan: Mapping[str, Any], hosts: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return those hosts that come after others, by their stages and roles.

    :param plan: a result of ``consul_upgrade_plan``.
    """
    order = _Order(plan)
    places = {order.place(host) for host in others}
    return [host for host in hosts if any(order.comes_before(place, order.place(host)) for place in places)]


def _plays(
    hosts: Mapping[str, Mapping[str, Any]], targets: Collection[str], control: Collection[str], order: _Order
) -> dict[str, str]:
    """Return host -> the play that upgrades it."""
    places = order.blocking(host for host in targets if hosts[host]["role"] in control)
    found = {}
    for host in targets:
        place = order.place(host)
        waited_for = any(order.comes_before(place, one) for one in places)
        waits = any(order.comes_before(one, place) for one in places)
        is_between = hosts[host]["role"] in control or (waited_for and waits)
        found[host] = CONTROL if is_between else FIRST if waited_for else DATA
    return found


def _without_blocked(
    hosts: Mapping[str, Mapping[str, Any]],
    targets: list[str],
    outside: Collection[str],
    order: _Order,
    part: str,
    fresh: Collection[str],
    *,
    limited: bool,
) -> list[str]:
    """Return the hosts of a run without those that wait for hosts outside the run. A later run upgrades those.

    :param outside: the hosts outside the run: those of other parts, and those that a limit leaves out.
    :param limited: whether there is a limit.
    :raises UpgradeError: ``control_plane_first``, ``data_plane_first``, ``limit_waits`` if only such hosts are left to upgrade.
    """
    others = order.blocking(outside)
    places = {order.place(host) for host in targets}
    blocked = {place: [one for one in others if order.comes_before(one, place)] for place in places}
    free = [host for host in targets if not blocked[order.place(host)]]
    waiting = [host for host in targets if blocked[order.place(host)] and hosts[host]["state"] != UPGRADED]
    if not waiting or any(hosts[host]["state"] != UPGRADED for host in free):
        return free
    if part == "role":
        return targets
    stage = min(order.place(host)[0] for host in waiting)
    firsts = {one for place in blocked if place[0] == stage for one in blocked[place]}
    unfinished = [
        f"{host} ({PENDING if host in fresh else hosts[host]['state']})"
        for place, found in others.items()
        if place in firsts
        for host in found
    ]
    if limited:
        raise UpgradeError(
            "limit_waits",
            f"upgrade_limit: {listing(waiting, 3)} can't be upgraded before hosts that the limit leaves out: {listing(unfinished, 3)}. "
            "Nothing was done: include these hosts, or upgrade them first.",
        )
    if part == CONTROL_PLANE:
        raise UpgradeError(
            "data_plane_first",
            f"The control plane waits for hosts of the data plane that are not upgraded: {listing(unfinished)}. Run "
            "the same command with the playbook convoy.upgrade.dataplane first, or with convoy.upgrade.upgrade for both.",
        )
    raise UpgradeError(
        "control_plane_first",
        f"The data plane waits for hosts of the control plane that are not upgraded: {listing(unfinished)}. Run "
        "the same command with the playbook convoy.upgrade.controlplane first, or with convoy.upgrade.upgrade for both.",
    )


def _waiting_lines(
    plan: Mapping[str, Any], dropped: Collection[str], outside: Collection[str], order: _Order, scope: Collection[str]
) -> list[str]:
    """Return a sentence on dropped hosts that wait for the same hosts outside the run.

    The plan names those that its limit blocks. It expects the others to be admitted, or they have begun.

    :param scope: the hosts that a limit leaves in.
    """
    expected = {host for wave in plan["waves"] for host in wave}
    others = order.blocking(outside)
    by_place: dict[tuple[int, str], list[str]] = {}
    for host in dropped:
        if host in expected or plan["hosts"][host]["state"] == UPGRADING:
            by_place.setdefault(order.place(host), []).append(host)
    found: dict[tuple[str, ...], list[str]] = {}
    for place, hosts in by_place.items():
        firsts = tuple(host for one, mates in others.items() if order.comes_before(one, place) for host in mates)
        found.setdefault(firsts, []).extend(hosts)
    return [
        f"Not in this run: {listing(hosts, 5)}; {'it waits' if len(hosts) == 1 else 'they wait'} for {listing(firsts, 5)}, which "
        f"{'this run' if {*firsts} & {*scope} else 'upgrade_limit'} leaves out."
        for firsts, hosts in found.items()
    ]


def hosts_with_post_upgrade_tasks(
    plan: Mapping[str, Any], composition: Mapping[str, Any], upgrade_roles: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the hosts that have post-upgrade tasks, ordered by plane. Those of pull roles run them themselves."""
    control = {name for name, data in upgrade_roles.items() if (data or {}).get("plane") == CONTROL_PLANE}
    roles = roles_with_post_upgrade(composition)
    with_tasks = [host for host, view in plan["hosts"].items() if view["role"] in roles]
    is_reversed = plan.get("rollback_order") == REVERSED
    return tuple(sorted(with_tasks, key=lambda host: (plan["hosts"][host]["role"] in control) == is_reversed))


def roles_with_post_upgrade(composition: Mapping[str, Any]) -> frozenset[str]:
    """Return the roles that have post-upgrade tasks, those of pull hosts too.

    :param composition: a result of ``compose_upgrade_tasks``.
    """
    roles = {**composition["roles"], **composition.get("pull_roles", {})}
    return frozenset(name for name, data in roles.items() if any(one["step"] == POST for one in data["task_groups"]))


def _is_in_part(view: Mapping[str, Any], control: Collection[str], part: str, role: str) -> bool:
    if part == "post_upgrade":
        return False
    if part == "role":
        return bool(view["role"] == role)
    return part == "all" or (view["role"] in control) == (part == CONTROL_PLANE)
