# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names in the rules that are no role, group or host of the fleet: a cap with a typo would limit no host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._common.errors import UpgradeError
from .._common.names import did_you_mean, in_order, listing
from .instructions import ORDER_KEYS, Instructions


@dataclass(frozen=True, slots=True)
class UnknownNames:
    """The unknown names under one key of the rules.

    :param key: the key of the instructions, such as ``rolling_rules.roles.wbe``.
    :param text: the warning, a sentence.
    """

    key: str
    names: tuple[str, ...]
    text: str


def unknown_names(
    rules: Instructions, roles: Sequence[str], groups: Iterable[str], hosts: Collection[str] | None
) -> tuple[UnknownNames, ...]:
    """Return the names in the rules that the fleet does not have, without those in ``optional_names``.

    :param roles: the roles of the fleet's hosts.
    :param groups: the groups of these roles.
    :param hosts: the fleet's hosts; None to skip the hosts that stages name.
    """
    groups = set(groups)
    known = {*roles, *groups}
    accepted = {*known, *rules.groups, *rules.optional_names}

    def absent(found: Iterable[tuple[str, str]]) -> list[UnknownNames]:
        text = "instructions: {}: no host of this fleet has the role or group {!r}{}"
        missing = [(key, name) for key, name in dict.fromkeys(found) if name not in accepted]
        return [UnknownNames(key, (name,), text.format(key, name, _meant(name, known))) for key, name in missing]

    found = absent(_named_roles(rules))
    for name in rules.groups:
        if name not in groups and name not in rules.optional_names:
            key = f"group_mappings.{name}"
            text = f"instructions: {key}: matches no role of this fleet{_meant(name, roles)}"
            found.append(UnknownNames(key, (name,), text))
    for at, stage in enumerate(rules.stages):
        found += absent((f"stages[{at}].roles", name) for name in stage.roles)
        named = stage.hosts if isinstance(stage.hosts, tuple) and hosts is not None else ()
        missing = tuple(name for name in named if name not in (hosts or ()) and name not in rules.optional_names)
        if missing:
            what = "is not a host" if len(missing) == 1 else "are not hosts"
            key = f"stages[{at}].hosts"
            text = f"instructions: {key}: {listing(missing)} {what} of this fleet{_meant(missing[0], hosts or ())}"
            found.append(UnknownNames(key, missing, text))
    return tuple(found)


def refuse_unknown(
    unknown: Iterable[UnknownNames], members: Mapping[str, str], more_order: Mapping[str, Any] | None = None
) -> None:
    """Raise an error if there are unknown names.

    :param members: host -> role, for the whole fleet.
    :param more_order: ``role_order`` from another source than the rules, such as an inventory. Its names may be unknown.
    :raises UpgradeError: ``unknown_names``; its details have the first ``key`` and all ``names``.
    """
    found = not_declared(unknown, more_order)
    if not found:
        return
    names = list(dict.fromkeys(name for one in found for name in one.names))
    more = f" Also affected: {listing([one.key for one in found[1:]])}." if len(found) > 1 else ""
    roles = in_order(set(members.values()))
    fleet = f"The fleet's roles are {listing(roles, 10)}." if roles else "No host of the fleet is known yet."
    raise UpgradeError(
        "unknown_names",
        f"{found[0].text}{more} {fleet} Nothing is changed. Correct the name, or allow it to be absent with "
        f"optional_names: [{listing(names, 10)}].",
        key=found[0].key,
        names=names,
    )


def not_declared(unknown: Iterable[UnknownNames], more_order: Mapping[str, Any] | None) -> list[UnknownNames]:
    """Return the unknown names, without those of ``role_order`` that ``more_order`` has too."""
    declared = {*(more_order or {})}
    for firsts in (more_order or {}).values():
        declared.update([firsts] if isinstance(firsts, str) else firsts)
    return [one for one in unknown if not (one.key.startswith(f"{ORDER_KEYS[0]}.") and declared.issuperset(one.names))]


def _named_roles(rules: Instructions) -> Iterator[tuple[str, str]]:
    yield from ((f"rolling_rules.roles.{name}", name) for name in rules.caps)
    yield from ((f"failure_rules.roles.{name}", name) for name in rules.failures.own)
    for name, firsts in rules.order.items():
        yield from ((f"{ORDER_KEYS[0]}.{name}", one) for one in (name, *firsts))


def _meant(name: str, known: Collection[str]) -> str:
    return did_you_mean(name, known) or "."
