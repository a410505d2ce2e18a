# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An operator's own hand on a gate."""

from __future__ import annotations

from .._model.errors import UpgradeError
from .._model.gates import CLOSED, written_value
from .._model.names import check_name
from .._store.client import Entry
from .._store.codec import decode_version, text_of
from .._store.errors import Conflict
from .._store.operations import Change, compare, compare_and_put, put, remove, remove_tree
from .._store.store import Store

SCOPES = ("global", "role", "host")

# A conflict means that somebody else wrote the same gate between our reading and our writing.
_MOST_TRIES = 5


def set_gate(store: Store, scope: str, name: str | None, value: object, *, dry: bool = False) -> list[Change]:
    """Set one gate, or with ``value`` None remove it; return what changed.

    :param scope: global, role or host; the latter two with a name.
    :raises UpgradeError: ``bad_name``, ``bad_gate_value``, ``busy``.
    """
    keys = store.keys
    key = keys.gate(scope, check_name(scope, name, "name") if scope != "global" else None)
    for _try in range(_MOST_TRIES):
        entries = {entry.key: entry for entry in store.client.read((key, keys.current_version), "consistent")}
        before = entries.get(key)
        version = entries.get(keys.current_version)
        after = None if value is None else written_value(value, decode_version(version.value) if version else None)
        change = Change(key, _shown(before), after)
        if change.before == change.after:
            return []
        index = before.modify_index if before else 0
        if not dry:
            try:
                store.client.write(
                    [compare(key, index), remove(key)] if after is None else [compare_and_put(key, after, index)]
                )
            except Conflict:
                continue
        return [change]
    raise UpgradeError("busy", f"{key} changed under each of {_MOST_TRIES} tries to set it. Who else sets it?")


def reset_gates(store: Store, *, dry: bool = False) -> list[Change]:
    """Wipe all gates and close the global one in one transaction: the original's global disable.

    :returns: what changed; nothing where the closed global gate is the only one already.
    """
    keys = store.keys
    everywhere = keys.gate("global")
    before = {entry.key: _shown(entry) for entry in store.client.read((keys.gates,), "consistent")}
    changes = [Change(key, value, None) for key, value in sorted(before.items()) if key != everywhere]
    if before.get(everywhere) != CLOSED:
        changes.append(Change(everywhere, before.get(everywhere), CLOSED))
    if changes and not dry:
        store.client.write([remove_tree(keys.gates), put(everywhere, CLOSED)])
    return changes


def _shown(entry: Entry | None) -> str | None:
    if entry is None:
        return None
    text = text_of(entry.value)
    return repr(entry.value) if text is None else text
