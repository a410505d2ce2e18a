# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates, at either of the two places where JioCloud's own code kept them, and closed ones of hosts, which become holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ....module_utils._model.errors import UpgradeError
from ....module_utils._model.gates import GateValue, written_value
from ....module_utils._model.holds import MIGRATION, Hold
from ....module_utils._model.names import check_name
from ....module_utils._store.client import Entry
from ....module_utils._store.codec import bare_text, decode_hold, encode_hold, text_of
from ....module_utils._store.old_keys import OldKeys
from ....module_utils._store.operations import Change, compare, compare_and_put, remove
from ..heard import heard
from ..step import Found, Move, Obstacle

_Place = tuple[str, str | None]
_EVERYBODY: _Place = ("global", None)


@dataclass(frozen=True, slots=True)
class _Gate:
    """A gate at either place.

    :param value: as it is written from now on.
    """

    entry: Entry
    value: str
    is_open: bool

    @property
    def text(self) -> str:
        return text_of(self.entry.value) or ""


def obstacles(found: Found) -> list[Obstacle]:
    """Return the gates that can't be read or placed, and those that say one thing here and another there."""
    wrong: list[Obstacle] = []
    old, new = _old(found, wrong), _new(found, wrong)
    if not found.begun:
        for place, gate in old.items():
            rival = new.get(place)
            if rival is not None and rival.is_open != gate.is_open:
                why = f"is {gate.value}, and {rival.entry.key} is {rival.value}"
                wrong.append(
                    Obstacle(gate.entry.key, why, "Delete the one of the two that is not so, or set both alike.")
                )
            elif rival is None and _overrides_rollout(found, new, place, gate):
                why = f"lets through what the rollout in {found.keys.ledger} keeps closed"
                mend = "Delete it, or set the same gate with consul_enable_puppet if it is meant."
                wrong.append(Obstacle(gate.entry.key, why, mend))
    return wrong


def _overrides_rollout(found: Found, new: Mapping[_Place, _Gate], place: _Place, gate: _Gate) -> bool:
    """Return whether an open gate was left over from before rollouts of convoy.upgrade, which know of the new place alone."""
    closed = new.get(_EVERYBODY)
    is_left_over = place != _EVERYBODY and gate.is_open and found.keys.ledger in found.entries
    return is_left_over and closed is not None and not closed.is_open


def moves(found: Found) -> list[Move]:
    """Return what copies the gates, writes them as they are written now, and makes holds of operators' closed ones.

    In JioCloud's code a rollout closed the global gate alone, so a host's closed one is an operator's, who would not expect
    the next rollout to open it. Where there is a ledger, the gates are those of its rollout.
    """
    old, new = _old(found, []), _new(found, [])
    made = []
    for place, gate in new.items():
        key = gate.entry.key
        if gate.text != gate.value:
            operations = (compare_and_put(key, gate.value, gate.entry.modify_index),)
            example = f"{key}: {gate.text!r} is {gate.value!r}"
            made.append(Move("gates written anew", example, operations, (Change(key, gate.text, gate.value),)))
        elif place not in old and _becomes_hold(found, place, gate):
            made += _hold(found, gate, str(place[1]))
    for place, gate in old.items():
        if place == _EVERYBODY:
            continue
        if _becomes_hold(found, place, gate):
            made += _hold(found, gate, str(place[1]))
        elif not _is_held(found, place, gate):
            made += _copy(found, place, gate, new.get(place))
    if not made and _EVERYBODY in old:
        # Nodes that may not read the old place go by the global gate alone, once there is one; so it comes after all others.
        return _copy(found, _EVERYBODY, old[_EVERYBODY], new.get(_EVERYBODY))
    return made


def _copy(found: Found, place: _Place, gate: _Gate, there: _Gate | None) -> list[Move]:
    key, index = gate.entry.key, gate.entry.modify_index
    # Both are set at once by all that knows of both; so where they differ, one was set later by something that does not.
    if there is not None and (there.value == gate.value or there.entry.modify_index >= index or not found.begun):
        return []
    if there is not None and gate.is_open and not there.is_open and found.keys.ledger in found.entries:
        # A rollout keeps it closed, and whoever set the other one knew nothing of its caps.
        return []
    target = found.keys.gate(*place)
    operations = (compare(key, index), compare_and_put(target, gate.value, found.index(target)))
    change = Change(target, there.text if there is not None else None, gate.value)
    return [Move("gates copied", f"{key} to {target}", operations, (change,))]


def _becomes_hold(found: Found, place: _Place, gate: _Gate) -> bool:
    if place[0] != "host" or gate.is_open or found.switched or found.keys.ledger in found.entries:
        return False
    return found.keys.hold("host", str(place[1])) not in found.entries or _is_held(found, place, gate)


def _hold(found: Found, gate: _Gate, host: str) -> list[Move]:
    target = found.keys.hold("host", host)
    if target in found.entries:
        return []
    key, index = gate.entry.key, gate.entry.modify_index
    reason = f"{key} was {gate.text.strip()} when the keys were migrated to layout 1"
    text = encode_hold(Hold(target, reason, MIGRATION))
    operations = (compare(key, index), compare_and_put(target, text, 0))
    return [Move("closed gates of hosts made holds", f"{key} to {target}", operations, (Change(target, None, text),))]


def _is_held(found: Found, place: _Place, gate: _Gate) -> bool:
    """Return whether a gate's host is held in place of it."""
    if place[0] != "host" or gate.is_open:
        return False
    entry = found.entries.get(found.keys.hold("host", str(place[1])))
    return entry is not None and decode_hold(entry.key, entry.value).by == MIGRATION


def removals(found: Found) -> list[Move]:
    """Return what removes the old gates.

    A closed gate that was in its place already stays behind its hold, as old code knows of no holds: it goes when the hold
    ends, or with the next rollout.
    """
    return [
        Move(
            "old gates removed",
            key,
            (compare(key, gate.entry.modify_index), remove(key)),
            (Change(key, gate.text, None),),
        )
        for gate in _old(found, []).values()
        for key in [gate.entry.key]
    ]


def waiting(found: Found) -> list[str]:
    """Return the hosts with a gate at the old place that never reported through convoy.upgrade."""
    hosts = (name for scope, name in _old(found, []) if scope == "host" and name)
    return [host for host in hosts if not heard(found, host)]


def _old(found: Found, wrong: list[Obstacle]) -> Mapping[_Place, _Gate]:
    """Return the gates that stand where layout 1 has none; other settings are left alone."""
    old = OldKeys(found.keys.prefix)
    gates: dict[_Place, _Gate] = {}
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


def _new(found: Found, wrong: list[Obstacle]) -> Mapping[_Place, _Gate]:
    keys = found.keys
    gates: dict[_Place, _Gate] = {}
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


def _take(found: Found, gates: dict[_Place, _Gate], place: _Place, entry: Entry, wrong: list[Obstacle]) -> None:
    version = found.entries.get(found.keys.current_version)
    current = bare_text(version.value) if version is not None else None
    text = text_of(entry.value)
    if "\ufffd" in entry.key:
        mend = "Delete it with Consul's HTTP API, its name percent-encoded."
        wrong.append(Obstacle(entry.key, "has bytes that are not UTF-8 text in its name", mend))
        return
    try:
        if place[1] is not None:
            check_name(place[0], place[1], place[0])
        is_open = GateValue(entry.key, text).is_open(current)
        gates[place] = _Gate(entry, written_value(text, current), is_open)
    except UpgradeError as error:
        mend = "Set it to True or False, or delete it."
        why = "can't be read" if error.code == "unreadable_gate" else "can't be named so any more"
        wrong.append(Obstacle(entry.key, f"{why} ({error.message})", mend))


def _homeless(key: str, known: str) -> Obstacle:
    return Obstacle(key, f"is none of {known}, so nobody knows whose gate it is", "Delete it, or move it there.")
