# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Gates that an operator sets directly."""

from __future__ import annotations

from dataclasses import replace

from ..._codecs.values import decode_ledger, text_of
from ..._common import runtime
from ..._common.errors import UpgradeError
from ..._common.names import check_name, did_you_mean, job_id
from ..._consul.client import KVEntry
from ..._consul.operations import Change, compare, compare_and_put, net_changes, put, remove, remove_tree
from ..._consul.retry import retry_on_conflict
from ..._fleet.fleet import find_members
from ..._fleet.gates import CLOSED, gate_text
from ..._fleet.ledger import PAUSED
from ..._state.gate_copies import GateCopies
from ..._state.layout import refuse_newer
from ..._state.legacy_keys import LegacyKeys
from ..._state.snapshot import decode_snapshot
from ..._state.store import Store


def set_gate(store: Store, scope: str, name: str | None, value: object, *, dry: bool = False) -> list[Change]:
    """Set one gate, or remove it if ``value`` is None; return the changes.

    As long as nodes may read gates in the legacy layout, the gate is written in both layouts in one transaction.

    :param scope: ``global``, ``role`` or ``host``; the latter two need a name.
    :raises UpgradeError: ``bad_name``, ``bad_gate_value``, ``busy``, ``newer_schema``.
    """
    keys, legacy_keys = store.keys, LegacyKeys(store.keys.prefix)
    place = (scope, check_name(scope, name, "name") if scope != "global" else None)
    key, legacy_key = keys.gate(*place), legacy_keys.gate(*place)
    places = (key, keys.current_version, keys.schema, keys.migration, *legacy_keys.gate_folders)

    def attempt() -> list[Change]:
        entries = {entry.key: entry for entry in store.client.read(places)}
        snapshot = decode_snapshot(keys, entries.values())
        refuse_newer(keys, snapshot.schema, snapshot.release)
        copies = GateCopies(keys, snapshot)
        after = None if value is None else gate_text(value, snapshot.current_version)
        changes = [
            replace(one, before=_before(entries.get(one.key), one.after))
            for one in copies.changes([Change(key, None, after)])
        ]
        changes = [one for one in changes if one.before != one.after]
        if not changes:
            return []
        index, legacy_index = (entries[one].modify_index if one in entries else 0 for one in (key, legacy_key))
        if not dry:
            checks = [compare(legacy_key, legacy_index)] if copies.is_needed else []
            write = [compare(key, index), remove(key)] if after is None else [compare_and_put(key, after, index)]
            # The agent of the host reads its gate at once. Those of a role, or of all, read it some minutes later.
            if scope == "host" and place[1] is not None:
                # A key that has the text already would wake no agent.
                write.append(put(keys.wake(place[1]), runtime.new_id()))
            store.client.settle([*checks, *copies.operations(write)])
        return changes

    return retry_on_conflict(attempt, lambda: key, "Find what else sets this gate, then run the same command again.")


def unknown_name(store: Store, scope: str, name: str) -> str:
    """Return a sentence if no host that has reported has this name or role, so that the gate may be of no use; else an empty text.

    One request, and one more unless it is the name of a host with a record.
    """
    try:
        if scope == "host" and store.client.get(store.keys.record(name)) is not None:
            return ""
        snapshot = store.snapshot()
        members = find_members(None, snapshot, snapshot.ledger.role_pattern if snapshot.ledger else None).members
    except UpgradeError as error:
        return f"name: whether the fleet has the {scope} {name!r} is unknown: {error.message}"
    known = members.keys() if scope == "host" else set(members.values())
    if name in known:
        return ""
    of_role = "of this role" if scope == "role" else "with this name"
    return f"name: no host {of_role} has reported: {name!r}{did_you_mean(name, known) or '.'} A gate that no host reads has no effect."


def reset_gates(store: Store, *, dry: bool = False) -> list[Change]:
    """Remove all gates and close the global one in one transaction, as ``global_disable`` of python-jiocloud does.

    Operators' pauses stay. If the legacy layout has too many gates for one transaction, the global gate is closed first.

    :returns: the changes; empty if a closed global gate is the only gate already.
    :raises UpgradeError: ``newer_schema``, ``busy``.
    """
    changes: list[Change] = []

    def attempt() -> None:
        copies, found = _read_for_reset(store)
        changes.extend(found)
        if found and not dry:
            write = [remove_tree(store.keys.gates), put(store.keys.gate("global"), CLOSED)]
            for piece in copies.ahead(write):
                store.client.settle(piece.operations)
            store.client.settle(copies.operations(write))

    # What else writes a gate that has a copy makes the copies of this read outdated.
    retry_on_conflict(attempt, lambda: store.keys.gates, "Find what else sets gates, then run the same command again.")
    return sorted(net_changes(changes), key=lambda one: one.after is not None)


def _read_for_reset(store: Store) -> tuple[GateCopies, list[Change]]:
    """Return the copies of gates as they are, and what a reset changes."""
    keys, legacy_keys = store.keys, LegacyKeys(store.keys.prefix)
    everywhere = keys.gate("global")
    read = store.client.read((keys.gates, keys.current_version, keys.schema, keys.migration, *legacy_keys.gate_folders))
    snapshot = decode_snapshot(keys, read)
    refuse_newer(keys, snapshot.schema, snapshot.release)
    found = {
        entry.key: entry
        for entry in read
        if entry.key.startswith(keys.gates) or legacy_keys.gate_of(entry.key) is not None
    }
    for _scope, _name, pause in snapshot.legacy_gates.paused(snapshot.current_version):
        del found[pause.key]
    copies = GateCopies(keys, snapshot)
    closed = {one.key: one.after for one in copies.changes([Change(everywhere, None, CLOSED)])}
    changes = [Change(key, _text_of(entry), None) for key, entry in sorted(found.items()) if key not in closed]
    changes += [
        Change(key, before, value)
        for key, value in closed.items()
        if (before := _before(found.get(key), value)) != value
    ]
    return copies, changes


def who_is_under_way(store: Store) -> str:
    """Return a sentence on the rollout or job that goes on although the gates were reset; empty if there is none.

    It is read after the reset, so that none is missed that began before.
    """
    try:
        entry = store.client.get(store.keys.ledger)
        ledger = decode_ledger(entry.key, entry.value) if entry is not None else None
    except UpgradeError as error:
        # The gates are closed, whatever keeps the ledger from being read.
        return f"A rollout may be under way: {error.message}"
    if ledger is not None and ledger.state == PAUSED:
        what = f"job {job_id(ledger.version)}" if ledger.is_job else f"rollout to {ledger.version}"
        return f"The {what} is paused. Once ansible-playbook convoy.upgrade.resume ends that, its planners admit hosts again."
    if ledger is not None and ledger.has_post_upgrade_tasks:
        return (
            f"The rollout to {ledger.version} has post-upgrade tasks left. Planners open gates for them again, and the global one at their end. To stop "
            "them, run ansible-playbook convoy.upgrade.pause."
        )
    if ledger is None or not ledger.is_under_way:
        return ""
    began = f"was begun by {ledger.who} and is {ledger.state}"
    if ledger.is_job:
        return (
            f"The job {job_id(ledger.version)} {began}. It goes on, because its admissions are not these gates. To stop it, run "
            "ansible-playbook convoy.upgrade.pause or ansible-playbook convoy.upgrade.abort."
        )
    return (
        f"The rollout to {ledger.version} {began}. Its planners admit hosts again. To stop it, run ansible-playbook convoy.upgrade.pause or "
        "ansible-playbook convoy.upgrade.abort."
    )


def _before(entry: KVEntry | None, after: str | None) -> str | None:
    """Return the text of a gate before a change to ``after``.

    One that a rollout has closed lets agents run Puppet at the version before, if their hosts' settings say so. Closed by an operator, it does not.
    """
    text = _text_of(entry)
    is_of_rollout = entry is not None and entry.flags != 0 and text == after == CLOSED
    return f"{text} (of a rollout)" if is_of_rollout else text


def _text_of(entry: KVEntry | None) -> str | None:
    if entry is None:
        return None
    text = text_of(entry.value)
    return repr(entry.value) if text is None else text
