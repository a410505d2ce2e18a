# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Holds and approvals for unknown hosts, roles and stages, such as typos, machines that share a name, and hosts with another role."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .._common.errors import UpgradeError
from .._common.names import did_you_mean, in_order, listing
from .._common.sanitize import limit_to, option
from .._fleet.fleet import DEFAULT_ROLE_PATTERN, Snapshot, compile_role_pattern, role_by_name
from .._fleet.holds import MADE_OF_GATES, PAUSED, Hold
from .._rules.stages import Stage

# More warnings than this come from hosts that are gone, not from typos.
_MOST = 5


def unknown_targets(snapshot: Snapshot, members: Mapping[str, str], stages: Iterable[Stage]) -> tuple[str, ...]:
    """Return warnings for holds for unknown hosts and roles, and for approvals of unknown stages.

    :param members: host -> role.
    :param stages: the stages of the rules. If there are none, approvals cause no warning: the rules have changed since.
    """
    known = {"role": _known_roles(snapshot, members), "host": members.keys()}
    named = {"role": snapshot.holds.roles, "host": snapshot.holds.hosts}
    # The name that each warning is for, and those that it may have been meant to be. Many hosts that are gone hide no role.
    found: list[Mapping[str, tuple[str, Iterable[str]]]] = [
        {
            f"{hold.key} is a hold for an unknown {scope}": (name, known[scope])
            for name, hold in holds.items()
            if name not in known[scope]
        }
        for scope, holds in named.items()
    ]
    names = [stage.name for stage in stages]
    approved: Mapping[str, tuple[str, Iterable[str]]] = {
        f"The approval of stage {name} is for an unknown stage": (name, names)
        for name in snapshot.approvals
        if names and name not in names
    }
    return tuple(_ended(text) for texts in (*found, approved) for text in _some(texts, texts))


def refuse_unknown_holds(snapshot: Snapshot, members: Mapping[str, str], optional: Collection[str]) -> None:
    """Refuse to begin while there are holds for unknown hosts and roles: a typo would hold no host. Neither would a pause of a role with another name now.

    :param members: host -> role.
    :param optional: names that may be absent, by the rules.
    :raises UpgradeError: ``unknown_names``.
    """
    if (lost := lost_hosts(snapshot, members)) is not None:
        again = option(lost.scope, lost.name)
        raise UpgradeError(
            "unknown_names",
            f"{lost.hold.key} is made of a pause that {lost.text()}. Then, or if nothing should be held, end the old hold with ansible-playbook "
            f"convoy.upgrade.unhold {again}. If it should hold only others, set it again with ansible-playbook convoy.upgrade.hold {again} "
            f"-e allow_unknown=true -e \"reason='...'\".",
            names=[lost.name],
        )
    known = {"role": _known_roles(snapshot, members), "host": set(members)}
    named = {"role": snapshot.holds.roles, "host": snapshot.holds.hosts}
    unknown = [
        (scope, name, hold)
        for scope, holds in named.items()
        for name, hold in holds.items()
        if name not in known[scope] and name not in optional and not _may_be_unknown(hold)
    ]
    if not unknown:
        return
    scope, name, hold = unknown[0]
    more = f" Also unknown: {listing([one for _scope, one, _hold in unknown[1:]], 10)}." if unknown[1:] else ""
    raise UpgradeError(
        "unknown_names",
        f"{hold.key} is a hold for an unknown {scope}{did_you_mean(name, known[scope]) or '.'}{more} It would hold no host, so nothing begins. "
        f"Correct it: end it with ansible-playbook convoy.upgrade.unhold {option(scope, name)}, and hold the right {scope}. If it is right, set it again with "
        f"ansible-playbook convoy.upgrade.hold {option(scope, name)} -e allow_unknown=true -e \"reason='...'\", or give the "
        f"inventory that has the {scope} with -i.",
        names=[one for _scope, one, _hold in unknown],
    )


def _may_be_unknown(hold: Hold) -> bool:
    """Return whether the name of a hold is no typo: an operator says so, or planners made it of a closed gate, whose host may be gone."""
    return hold.allow_unknown or hold.by in (*MADE_OF_GATES, PAUSED)


@dataclass(frozen=True, slots=True)
class LostHosts:
    """A hold that was made of a pause or a gate, and the hosts that this closed by their names and that nothing holds now.

    :param scope: ``role`` or ``host``.
    :param roles: the roles of the hosts in the fleet.
    """

    hold: Hold
    scope: str
    name: str
    hosts: Sequence[str]
    roles: Sequence[str]

    def text(self) -> str:
        """Return sentences with the hosts, and the command that holds them."""
        is_role = self.scope == "role"
        they, them = ("it has", "it") if len(self.hosts) == 1 else ("they have", "them")
        here = f"the role {listing(self.roles)}" if is_role else "another name"
        target = option(self.scope, ",".join(self.roles if is_role else self.hosts))
        return (
            f"closed {listing(self.hosts)} by name. Here {they} {here}, so a hold of the {self.scope} {self.name} does not hold {them}, and nothing begins. "
            f"Hold {them} with ansible-playbook convoy.upgrade.hold {target} -e \"reason='...'\""
        )


def lost_hosts(snapshot: Snapshot, members: Mapping[str, str]) -> LostHosts | None:
    """Return the first hold that was made of a pause or a gate and does not hold all hosts that this closed; None if there is none.

    python-jiocloud finds the role of a host in its name. It may know a host by its short name, or by its full one.

    :param members: host -> role.
    """
    made = [
        (scope, name, hold)
        for scope, name, hold in snapshot.holds.every()
        if name and hold.by in (*MADE_OF_GATES, PAUSED) and not hold.allow_unknown
    ]
    if not made:
        return None
    pattern = compile_role_pattern(DEFAULT_ROLE_PATTERN)
    # A hold that a host reports of itself does not count: it ends by itself.
    free = {
        host: role
        for host, role in members.items()
        # An operator may have ended the hold of its former role for it.
        if snapshot.holds.set_for(host, role) is None
        and snapshot.hold_of_former_role(host) is None
        and snapshot.former_role(host) != ""
    }
    named: dict[tuple[str, str], list[str]] = {}
    for host in free:
        named.setdefault(("role", role_by_name(host, pattern) or ""), []).append(host)
        for short in _short_names(host):
            named.setdefault(("host", short), []).append(host)
    for scope, name, hold in made:
        shorter = [short for short in _short_names(name) if short in free] if scope == "host" else []
        if hosts := [*named.get((scope, name), ()), *shorter]:
            return LostHosts(hold, scope, name, hosts, in_order({free[host] for host in hosts}))
    return None


def _short_names(host: str) -> list[str]:
    """Return the host's name without its last labels: ``a`` and ``a.b`` for ``a.b.c``."""
    labels = host.split(".")
    return [".".join(labels[:count]) for count in range(1, len(labels))]


def _known_roles(snapshot: Snapshot, members: Mapping[str, str]) -> set[str]:
    """Return the roles of a fleet, with those that hosts had before: a hold of such a role holds them too."""
    return {*members.values(), *filter(None, map(snapshot.former_role, members))}


def duplicate_machines(snapshot: Snapshot, members: Iterable[str]) -> tuple[str, ...]:
    """Return warnings for names under which two machines have reported, and for machines that have reported under two names."""
    hosts = [host for host in members if host in snapshot.records]
    texts = [text for host in hosts if (text := other_machine(snapshot, host))]
    names = [text for one in _of_machines(snapshot, hosts).values() if (text := _renamed(snapshot, one))]
    return tuple(_ended(text) for text in (*_some(texts), *_some(names)))


def other_roles(snapshot: Snapshot, members: Mapping[str, str]) -> tuple[str, ...]:
    """Return warnings for hosts that read the gate of another role than the one that the fleet has for them.

    :param members: host -> role.
    """
    known = [(host, role) for host, role in members.items() if host in snapshot.records]
    texts = [text for host, role in known if (text := other_role(snapshot, host, role))]
    return tuple(_ended(text) for text in _some(texts))


def other_role(snapshot: Snapshot, host: str, role: str) -> str:
    """Return the warning for a host that reads the gate of another role, without a full stop; empty for others."""
    record = snapshot.records.get(host)
    if record is None or record.role in (None, role) or not record.readable:
        return ""
    return (
        f"{host} has the role {record.role} in its settings, and {role} here, so it is not admitted. Correct one of them, then enroll it again: "
        f"ansible-playbook convoy.upgrade.enroll {limit_to([host])}"
    )


def other_name(snapshot: Snapshot, host: str) -> str:
    """Return the warning for a host whose machine has also reported under another name, without a full stop; empty for others."""
    return next(
        (_renamed(snapshot, one) for one in _of_machines(snapshot, snapshot.records).values() if host in one), ""
    )


def _of_machines(snapshot: Snapshot, hosts: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host in hosts:
        record = snapshot.records.get(host)
        if record is not None and record.machine is not None:
            found.setdefault(record.machine, []).append(host)
    return found


def _renamed(snapshot: Snapshot, hosts: list[str]) -> str:
    if len(hosts) < 2:
        return ""
    first = min(hosts, key=lambda host: snapshot.records[host].index)
    machine = snapshot.records[first].machine
    return (
        f"{listing(in_order(hosts))} have reported from one machine, {machine}. If they are clones, give each an /etc/machine-id of its own. "
        f"If a host was renamed, remove its former name: ansible-playbook convoy.upgrade.forget {option('host', first)}"
    )


def other_machine(snapshot: Snapshot, host: str) -> str:
    """Return the warning for a host under whose name two machines have reported, without a full stop; empty for others."""
    record = snapshot.records.get(host)
    if record is None or record.other_machine is None or not record.readable:
        return ""
    return (
        f"{host}: two machines have reported under this name, {record.machine} and {record.other_machine}. If both are there, rename one. "
        f"If the host was reinstalled, this warning ends with its next upgrade, or with ansible-playbook convoy.upgrade.forget {option('host', host)}"
    )


def _some(texts: Collection[str], meant: Mapping[str, tuple[str, Iterable[str]]] | None = None) -> list[str]:
    """Return the first texts, and how many more there are.

    :param meant: text -> a name, and those with which it is compared. That takes long, so it is done only for what is shown.
    """
    left = len(texts) - _MOST
    first = in_order(texts)[:_MOST]
    if meant is not None:
        first = [text + did_you_mean(*meant[text]) for text in first]
    return [*first, f"The same warning applies to {left} more"] if left > 0 else first


def _ended(text: str) -> str:
    return text if text.endswith("?") else f"{text}."
