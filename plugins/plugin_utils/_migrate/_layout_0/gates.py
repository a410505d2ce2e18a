# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Operators' pauses and rollouts' gates in the layout of python-jiocloud. Pauses become holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....module_utils._codecs.values import bare_text, encode_hold, text_of
from ....module_utils._common.errors import UpgradeError
from ....module_utils._common.names import check_name, in_order, listing
from ....module_utils._common.sanitize import truncated_text
from ....module_utils._consul.client import KVEntry
from ....module_utils._consul.operations import Change, compare, compare_and_put, remove
from ....module_utils._fleet.fleet import DEFAULT_ROLE_PATTERN, compile_role_pattern, role_by_name
from ....module_utils._fleet.gates import GateValue
from ....module_utils._fleet.holds import MIGRATION, Hold
from ....module_utils._state.legacy_keys import LegacyKeys
from ..active_hosts import record_index
from ..step import KeyMove, KeyProblem, KeysFound

_Place = tuple[str, str | None]
_GLOBAL: _Place = ("global", None)


@dataclass(frozen=True, slots=True)
class _GateFound:
    """A gate, or in the legacy layout a pause.

    :param by_hand: whether something other than a planner closed it.
    """

    entry: KVEntry
    is_open: bool
    by_hand: bool

    @property
    def text(self) -> str:
        return text_of(self.entry.value) or ""


def gate_problems(found: KeysFound) -> list[KeyProblem]:
    """Return the gates and pauses that can't be read or assigned.

    The two layouts may differ: the legacy layout has operators' pauses, the new one has a rollout's gates.
    """
    wrong: list[KeyProblem] = []
    _old(found, wrong)
    _new(found, wrong)
    return wrong


def moves(found: KeysFound) -> list[KeyMove]:
    """Return the moves that create holds for operators' pauses, and for gates that were closed by hand.

    A pause closes a host whatever its gates say, and outlives every rollout, as a hold does. An open legacy key pauses no host and is
    not copied: as a gate, it would open what a rollout keeps closed. In python-jiocloud, a rollout closes only the global gate, so an
    operator closed any closed gate of a role or a host. With a ledger, gates are those of its rollout.
    """
    old, new = _old(found, []), _new(found, [])
    made = [one for place, gate in old.items() if gate.by_hand for one in _hold(found, old, place, gate)]
    if found.switched or found.keys.ledger in found.entries:
        return made
    by_hand = {place: gate for place, gate in new.items() if gate.by_hand and place != _GLOBAL}
    rest = {place: gate for place, gate in by_hand.items() if place not in old or not old[place].by_hand}
    return made + [one for place, gate in rest.items() for one in _hold(found, {}, place, gate)]


def _hold(found: KeysFound, old: Mapping[_Place, _GateFound], place: _Place, gate: _GateFound) -> list[KeyMove]:
    target = found.keys.hold(*place)
    if target in found.entries:
        return []
    key, index = gate.entry.key, gate.entry.modify_index
    reason = f"{key} was {truncated_text(gate.text.strip())} when the keys were migrated to layout 1"
    if exempt := _exempt(old, place):
        reason += f"; python-jiocloud exempted {listing(exempt)}, but a hold does not"
    text = encode_hold(Hold(target, reason, MIGRATION))
    operations = (compare(key, index), compare_and_put(target, text, 0))
    return [KeyMove("pauses converted to holds", f"{key} to {target}", operations, (Change(target, None, text),))]


def _exempt(old: Mapping[_Place, _GateFound], place: _Place) -> list[str]:
    """Return the roles and hosts that a more specific open key exempts from a pause."""
    scope, role = place
    if scope == "host":
        return []
    pattern = compile_role_pattern(DEFAULT_ROLE_PATTERN)
    nearer = [(of, name) for (of, name), gate in old.items() if gate.is_open and name is not None]
    hosts = [name for of, name in nearer if of == "host" and (scope == "global" or role_by_name(name, pattern) == role)]
    return [*(f"role {name}" for of, name in nearer if of == "role" and scope == "global"), *in_order(hosts)]


def removals(found: KeysFound) -> list[KeyMove]:
    """Return the moves that remove the legacy gates.

    A closed gate in the new layout stays until its hold ends or the next rollout begins, because old code does not read holds.
    """
    return [
        KeyMove(
            "legacy gates removed",
            gate.entry.key,
            (compare(gate.entry.key, gate.entry.modify_index), remove(gate.entry.key)),
            (Change(gate.entry.key, gate.text, None),),
        )
        for gate in _old(found, []).values()
    ]


def waiting(found: KeysFound) -> list[str]:
    """Return the hosts with a legacy gate that have never reported through convoy.upgrade."""
    hosts = (name for scope, name in _old(found, []) if scope == "host" and name)
    return [host for host in hosts if not record_index(found, host)]


def _old(found: KeysFound, wrong: list[KeyProblem]) -> Mapping[_Place, _GateFound]:
    """Return the gates under legacy keys. Other settings are ignored."""
    old = LegacyKeys(found.keys.prefix)
    gates: dict[_Place, _GateFound] = {}
    for folder in old.gate_folders:
        for entry in found.below(folder):
            place = old.gate_of(entry.key)
            if place is None and entry.key.endswith("/enable_puppet"):
                wrong.append(
                    _homeless(
                        entry.key, f"{old.gate('host', '<host>')}, {old.gate('role', '<role>')} or {old.gate('global')}"
                    )
                )
            elif place is not None:
                _take(found, gates, place, entry, wrong)
    return gates


def _new(found: KeysFound, wrong: list[KeyProblem]) -> Mapping[_Place, _GateFound]:
    keys = found.keys
    gates: dict[_Place, _GateFound] = {}
    for entry in found.below(keys.gates):
        below = entry.key[len(keys.gates) :]
        scope, _slash, name = below.partition("/")
        if below == "global" or (scope in ("role", "host") and name and "/" not in name):
            _take(found, gates, (scope, name or None), entry, wrong)
        elif below and not below.endswith("/"):
            wrong.append(
                _homeless(
                    entry.key, f"{keys.gate('host', '<host>')}, {keys.gate('role', '<role>')} or {keys.gate('global')}"
                )
            )
    return gates


def _take(
    found: KeysFound, gates: dict[_Place, _GateFound], place: _Place, entry: KVEntry, wrong: list[KeyProblem]
) -> None:
    version = found.entries.get(found.keys.current_version)
    current = bare_text(version.value) if version is not None else None
    text = text_of(entry.value)
    if "\ufffd" in entry.key:
        fix = "Delete it with Consul's HTTP API, its name percent-encoded."
        wrong.append(KeyProblem(entry.key, "has bytes that are not UTF-8 text in its name", fix))
        return
    try:
        if place[1] is not None:
            check_name(place[0], place[1], place[0])
        gate = GateValue(entry.key, text, entry.flags)
        gates[place] = _GateFound(entry, gate.is_open(current), gate.was_closed_by_hand(current))
    except UpgradeError as error:
        fix = "Set it to True or False, or delete it. Puppet runs only if the key is True or missing."
        why = "can't be read" if error.code == "unreadable_gate" else "has a name that is no longer allowed"
        wrong.append(KeyProblem(entry.key, f"{why} ({error.message})", fix))


def _homeless(key: str, known: str) -> KeyProblem:
    return KeyProblem(key, f"is none of {known}, so its host or role is unknown", "Delete it, or move it there.")
