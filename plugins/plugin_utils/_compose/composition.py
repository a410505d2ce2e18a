# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The composition: the tasks that the hosts of each role run, in order. Nothing is written here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...module_utils._common.names import did_you_mean, in_order, listing
from ...module_utils._fleet.checkpoints import MOST_DONE
from .._services.planes import DATA_PLANE
from .._services.refusal import refusal
from .._services.service import Finder, Service, ServiceEntry, load_service, read_entry, version_rules_of
from .._services.service_paths import by_version, in_order_of
from .._services.steps import NUMBERED, POST, REPLACEMENT, STEPS, UPGRADE, numbered_step
from .._services.task_file import TaskPiece
from .duplicates import Use, are_duplicates
from .inventory_roles import check_roles
from .task_groups import TaskGroup, task_groups
from .task_order import (
    REVERSED_TASK_GROUPS,
    RoleNeeds,
    RoleOrdering,
    inverted,
    order_among_roles,
    order_within_role,
    refuse_cycle,
)

_FOLDER = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True)
class ComposedRole:
    """A role of the fleet with its tasks.

    :param services: pairs of entry and service, in their order within a step.
    :param task_groups: task groups in the order in which they run: the step validate first, the post-upgrade tasks last.
    :param stops_together: whether all services are stopped before any of them is upgraded. Otherwise each one is stopped, upgraded and
        started before the next.
    :param reversed_task_groups: the task groups in the order of a rollback: each service is replaced before those that it requires. None if
        that is the order of an upgrade.
    :param dropped: sentences on tasks that are left out, because the task before them, of another service, is the same.
    :param pull: whether its hosts run the tasks themselves.
    """

    name: str
    plane: str | None
    services: tuple[tuple[ServiceEntry, Service], ...]
    task_groups: tuple[TaskGroup, ...]
    dropped: tuple[str, ...]
    stops_together: bool = False
    pull: bool = False
    reversed_task_groups: tuple[TaskGroup, ...] | None = None

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, without the tasks themselves."""
        return {
            "plane": self.plane,
            "services": {entry.name: service.role for entry, service in self.services},
            "paths": {
                entry.name: _path(entry, service)
                for entry, service in self.services
                if service.checkpoints or service.meta.provider
            },
            "version_rules": {entry.name: version_rules_of(entry, service).plain() for entry, service in self.services},
            "task_groups": [group.plain() for group in self.task_groups],
            "dropped": list(self.dropped),
            **({REVERSED_TASK_GROUPS: [group.name for group in back]} if (back := self.reversed_task_groups) else {}),
        }

    def of_file(self, step: str) -> list[TaskGroup]:
        """Return the task groups in the file of a step. If services do not stop together, that of the step upgrade has three steps."""
        if self.stops_together or step not in REPLACEMENT:
            return [group for group in self.task_groups if numbered_step(group.step) == step]
        if step == UPGRADE:
            return [group for group in self.task_groups if group.step in REPLACEMENT]
        return [
            group for group in self.task_groups if numbered_step(group.step) == step and group.step not in REPLACEMENT
        ]


@dataclass(frozen=True, slots=True)
class Composition:
    """All roles that have services, and the order between all roles.

    :param among: the order between roles.
    """

    roles: Mapping[str, ComposedRole]
    among: RoleOrdering
    warnings: tuple[str, ...] = field(default=())

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, without the tasks themselves."""
        return {
            "roles": {role.name: role.plain() for role in self.roles.values() if not role.pull},
            "pull_roles": {role.name: role.plain() for role in self.roles.values() if role.pull},
            "role_order": {role: list(firsts) for role, firsts in self.among.order.items()},
            "reasons": {
                role: {first: why for first, why in found.items() if first in self.among.order.get(role, ())}
                for role, found in self.among.reasons.items()
                if found
            },
            "lockstep": [list(group) for group in self.among.lockstep],
            # Ansible removes the key ``warnings`` from results.
            "remarks": list(self.warnings),
        }


def _path(entry: ServiceEntry, service: Service) -> dict[str, Any]:
    checkpoints = in_order_of(version_rules_of(entry, service).order(), service.checkpoints, service.meta)
    return {"checkpoints": [checkpoint.version for checkpoint in checkpoints], "provider": service.meta.provider}


def compose(
    upgrade_roles: Mapping[str, Any],
    find: Finder,
    places: Sequence[str],
    hosts: Mapping[str, int] | None = None,
) -> Composition:
    """Read all services of the roles and return their tasks in order.

    :param find: finds the folder of an Ansible role by its name.
    :param places: where it searches, for messages.
    :param hosts: role -> number of hosts; None if unknown.
    :raises UpgradeError: ``bad_upgrade_roles``, ``bad_service``.
    """
    check_roles(upgrade_roles)
    for role in upgrade_roles:
        if not isinstance(role, str) or not _FOLDER.fullmatch(role):
            raise refusal("upgrade_roles", f"the role {role!r} can't name a folder. Use letters, digits, _ and -.")
    found: dict[str, Service] = {}
    listed: dict[str, list[tuple[ServiceEntry, Service]]] = {}
    for role, what in upgrade_roles.items():
        listed[role] = _listed(role, (what or {}).get("services") or (), find, places, found)
        _refuse_two_planes(role, (what or {}).get("plane"), listed[role])
        if _is_pull(what):
            _refuse_on_pull_hosts(role, listed[role])
    requires = _requires(listed, find, places)
    warnings = list(requires.warnings)
    needs = {
        role: RoleNeeds(
            (upgrade_roles[role] or {}).get("plane"),
            [entry.name for entry, _service in services],
            requires.by_use,
            _is_pull(upgrade_roles[role]),
        )
        for role, services in listed.items()
    }
    among = order_among_roles(needs)
    in_lockstep = {role for group in among.lockstep for role in group}
    composed = {
        role: _role(role, needs[role], services, in_lockstep=role in in_lockstep)
        for role, services in listed.items()
        if services
    }
    for one in composed.values():
        if not any(group.step in STEPS[1:] for group in one.task_groups):
            names = ", ".join(entry.name for entry, _service in one.services)
            warnings.append(
                f"upgrade_roles.{one.name}: none of its services ({names}) has a task between {NUMBERED[1]} and "
                f"{NUMBERED[-1]}, so its hosts count as upgraded without anything being done on them."
            )
    _refuse_too_many(composed)
    _refuse_shared_handlers([role for role in composed.values() if not role.pull])
    for one in composed.values():
        if one.pull:
            _refuse_shared_handlers([one])
    if hosts is not None:
        _refuse_once_nowhere(composed, hosts)
    return Composition(composed, among, tuple(warnings))


def _listed(
    role: str, services: object, find: Finder, places: Sequence[str], found: dict[str, Service]
) -> list[tuple[ServiceEntry, Service]]:
    where = f"upgrade_roles.{role}.services"
    if not isinstance(services, Sequence) or isinstance(services, str):
        raise refusal(where, f"{services!r} is not a list of services.")
    uses: dict[str, tuple[ServiceEntry, Service]] = {}
    for at, value in enumerate(services):
        entry = read_entry(value, f"{where}[{at}]")
        if entry.role not in found:
            found[entry.role] = load_service(entry.role, find, f"{where}[{at}]", places)
        before = uses.get(entry.name)
        if before is not None and before[0] != entry:
            raise refusal(
                f"{where}[{at}]",
                f"the role has another service {entry.name!r} already. Give one of them a name of its own.",
            )
        uses[entry.name] = (entry, found[entry.role])
    return list(uses.values())


def _refuse_two_planes(role: str, plane: str | None, services: Sequence[tuple[ServiceEntry, Service]]) -> None:
    """Refuse services of another plane than their role: a host is upgraded as a whole, so they would go too early or too late."""
    for number, (entry, service) in enumerate(services):
        own = entry.plane or service.meta.plane
        if not own or own == (plane or DATA_PLANE):
            continue
        other = plane or DATA_PLANE
        accept = f"accept that {entry.name} goes with {other}: {{service: {entry.role}, plane: {other}}}"
        if plane is None:
            why = f"and the role {role} has none, so it goes with {other}. Set upgrade_roles.{role}.plane to {own}, or {accept}."
        else:
            why = (
                f"and the role {role} to {other}. A host is upgraded as a whole, in one of the planes. So {accept}, "
                f"or have it on other hosts, in a role of {own}."
            )
        raise refusal(f"upgrade_roles.{role}.services[{number}]", f"{entry.name} belongs to the plane {own}, {why}")


def _is_pull(what: Mapping[str, Any] | None) -> bool:
    return bool((what or {}).get("pull"))


def _refuse_on_pull_hosts(role: str, services: Sequence[tuple[ServiceEntry, Service]]) -> None:
    """Refuse services that a host can't run by itself."""
    for number, (entry, service) in enumerate(services):
        if service.meta.needs_controller:
            raise refusal(
                f"upgrade_roles.{role}.services[{number}]",
                f"{entry.name} needs a controller ({service.meta.at('needs_controller')}), but the hosts of {role} run their tasks themselves "
                f"(pull: true). Remove {entry.name}, or pull.",
            )


@dataclass(frozen=True, slots=True)
class _Requires:
    """The services that each use of a service requires, by their names in the roles."""

    by_use: Mapping[str, Sequence[str]]
    warnings: Sequence[str]


def _requires(
    listed: Mapping[str, Sequence[tuple[ServiceEntry, Service]]], find: Finder, places: Sequence[str]
) -> _Requires:
    uses: dict[str, Service] = {}
    for role, services in listed.items():
        for entry, service in services:
            other = uses.setdefault(entry.name, service)
            if other.path != service.path:
                raise refusal(
                    f"upgrade_roles.{role}",
                    f"{entry.name!r} is {service.path} here and {other.path} in another role, so requires would be ambiguous. "
                    "Give one of them a name of its own.",
                )
    by_name: dict[str, list[str]] = {}
    for name, service in uses.items():
        for known in dict.fromkeys((name, service.short, service.role)):
            by_name.setdefault(known, []).append(name)
    by_use: dict[str, list[str]] = {}
    warnings: dict[str, None] = {}
    where = {}
    for name, service in uses.items():
        where[name] = at = service.meta.at("requires")
        by_use[name] = []
        for required in service.meta.requires:
            if required in by_name:
                by_use[name] += [one for one in by_name[required] if one not in by_use[name]]
            elif find(required) is None:
                raise refusal(
                    at,
                    f"requires: no service {required!r} is in upgrade_roles or in {listing(list(places), 10)}"
                    f"{did_you_mean(required, by_name) or '.'}",
                )
            else:
                warnings[f"{at}: {name} requires {required}, which no role has, so it has no effect."] = None
    refuse_cycle(by_use, where)
    return _Requires(by_use, list(warnings))


def _role(
    name: str, needs: RoleNeeds, services: Sequence[tuple[ServiceEntry, Service]], *, in_lockstep: bool
) -> ComposedRole:
    by_use = {entry.name: (entry, service) for entry, service in services}
    ordered = [by_use[one] for one in order_within_role(list(by_use), needs.requires)]
    groups: list[TaskGroup] = []
    dropped: list[str] = []
    orders = {entry.name: version_rules_of(entry, service).order() for entry, service in ordered if service.checkpoints}
    on_path = by_version(
        {
            entry.name: (orders[entry.name], in_order_of(orders[entry.name], service.checkpoints, service.meta))
            for entry, service in ordered
            if service.checkpoints
        }
    )
    # A checkpoint may leave its service stopped for the next one. In a wave, Ansible runs the whole file of one role and then that of
    # another, so services of roles that require each other can be replaced in order only if all stop before any is upgraded.
    stops_together = in_lockstep or any(
        service.meta.stop_together or service.checkpoints for _entry, service in ordered
    )
    for step in (*STEPS, POST):
        for use, checkpoint in on_path:
            mine = [piece for piece in checkpoint.pieces if piece.step == step]
            groups += task_groups(step, use, mine, checkpoint=checkpoint.version, provider=by_use[use][1].meta.provider)
        last: Use | None = None
        for entry, service in ordered:
            kept: list[TaskPiece] = []
            is_provider = service.meta.provider
            mine = [piece for piece in (service.post if step == POST else service.pieces) if piece.step == step]
            # What one host runs for all needs the same name in every role, so its number may not depend on the other services of a role.
            keeps_all = is_provider or len({piece.once for piece in mine}) > 1
            for piece in mine:
                # After another task, the same one may do more, such as read a package source that was written in between.
                if last is None or kept or keeps_all or not are_duplicates(last, (entry, service, piece)):
                    kept.append(piece)
                else:
                    dropped.append(
                        f"{piece.where}: left out of {entry.name}, as {last[0].name} has the same task ({last[2].where})."
                    )
            # Other tasks may run between those of two services that are replaced in turn.
            if kept and (is_provider or (step in REPLACEMENT and not stops_together)):
                last = None
            elif kept:
                last = (entry, service, kept[-1])
            groups += task_groups(step, entry.name, kept, provider=is_provider and step != POST)
    found = ComposedRole(name, needs.plane, tuple(ordered), tuple(groups), tuple(dropped), stops_together, needs.pull)
    if stops_together:
        return found
    forward = tuple(_by_service(groups, [entry.name for entry, _service in ordered]))
    back = tuple(_by_service(groups, order_within_role(list(by_use), inverted(needs.requires))))
    return replace(found, task_groups=forward, reversed_task_groups=back if back != forward else None)


def _by_service(groups: Sequence[TaskGroup], services: Sequence[str]) -> list[TaskGroup]:
    """Return task groups so that each service is stopped, upgraded and started before the next. The order of all other steps stays."""
    first = next((at for at, group in enumerate(groups) if group.step in REPLACEMENT), 0)
    replacing = [group for group in groups if group.step in REPLACEMENT]
    return [
        *groups[:first],
        *(group for service in services for group in replacing if group.service == service),
        *groups[first + len(replacing) :],
    ]


def _refuse_too_many(roles: Mapping[str, ComposedRole]) -> None:
    """Refuse roles whose task groups have too many names for a host's record or a provider's key.

    The task groups of a provider belong to each role that has it.
    """
    for role in roles.values():
        upgrade = [group.name for group in role.task_groups if group.step in STEPS[1:]]
        after = [group.name for group in role.task_groups if group.step == POST]
        for names in (upgrade, after):
            length = sum(map(len, names))
            if length > MOST_DONE:
                raise refusal(
                    f"upgrade_roles.{role.name}",
                    f"the names of its {len(names)} task groups, such as {names[0]}, have {length} characters in total, and a host's "
                    f"record has room for {MOST_DONE}. Remove checkpoints that no host needs any more, or spread the services over "
                    "several roles.",
                )


def _refuse_shared_handlers(roles: Sequence[ComposedRole]) -> None:
    """Refuse different handlers of one name in a play: Ansible runs the last loaded one for all services and hosts of the play."""
    # The name of a handler, or a topic that it listens to -> for each use of a service: its name in its role, and such handlers of it.
    known: dict[str, list[tuple[str, Sequence[Use]]]] = {}
    for role in roles:
        for entry, service in role.services:
            name = f"{entry.name} of the role {role.name}"
            mine: dict[str, list[Use]] = {}
            for handler in service.handlers:
                for topic in _topics(handler.data):
                    mine.setdefault(topic, []).append((entry, service, handler))
            for topic, handlers in mine.items():
                for other_name, others in known.setdefault(topic, []):
                    if _differ(handlers, others):
                        raise refusal(
                            handlers[0][2].where,
                            f"{name} has the handler {topic!r}, and {other_name} has one of this name with another effect ({others[0][2].where}). "
                            "Ansible would run the same one for both. Give each a name of its own, such as with a variable that differs, here and in "
                            "notify.",
                        )
                known[topic].append((name, handlers))


def _topics(handler: Mapping[str, Any]) -> list[str]:
    listen = handler.get("listen")
    topics = [handler.get("name"), *(listen if isinstance(listen, list) else [listen])]
    # A variable in a name is known only when it runs.
    return list(dict.fromkeys(topic for topic in topics if isinstance(topic, str) and "{{" not in topic))


def _differ(handlers: Sequence[Use], others: Sequence[Use]) -> bool:
    (entry, service, _handler), (other_entry, other_service, _other) = handlers[0], others[0]
    if service.path == other_service.path and entry.vars == other_entry.vars:
        return False
    return len(handlers) != len(others) or not all(map(are_duplicates, handlers, others))


def _refuse_once_nowhere(roles: Mapping[str, ComposedRole], hosts: Mapping[str, int]) -> None:
    having: dict[str, list[str]] = {}
    for role in roles.values():
        for entry, service in role.services:
            if service.runs_once:
                having.setdefault(entry.name, []).append(role.name)
    for name, names in having.items():
        if not any(hosts.get(role) for role in names):
            raise refusal(
                f"upgrade_roles.{names[0]}",
                f"{name} has tasks that one host runs for all, but no role with this service has a host: {listing(in_order(names))}. "
                "Add a host to the role, or remove the service.",
            )
