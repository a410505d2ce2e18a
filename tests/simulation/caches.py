# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes nights quick: processes of a world read the same answers, and what one of them has decoded need not be decoded again.

Each cache is of a function without effects whose result no one changes. So a night with them is the same as one without.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import getpass
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs import values
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import decode_ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._common.names import check_name, is_valid_name
from ansible_collections.convoy.upgrade.plugins.module_utils._consul import answers, client
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._host import gate_question
from ansible_collections.convoy.upgrade.plugins.module_utils._planner import blockers
from ansible_collections.convoy.upgrade.plugins.module_utils._rollout import opened_gates
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import Instructions, parse
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.windows import (
    Freeze,
    OutsideHours,
    Window,
    outside_hours,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._state import snapshot, store
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import SnapshotDecoder

from .consul.server import Body

# So many values of each kind are kept.
_MOST = 20_000
_MOST_SNAPSHOTS = 500
_COLLECTION = "ansible_collections.convoy.upgrade.plugins."


class _Parsed(dict[str, Any]):
    """An entry of an answer whose shape is right.

    :param entry: what the client makes of it.
    """

    entry: KVEntry


class _Decoder:
    """Makes snapshots of all keys: by decoding those that differ from the keys of the snapshot before."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._forget()

    def _forget(self) -> None:
        self._decoder, self._entries = SnapshotDecoder(self._keys), dict[str, KVEntry]()

    def snapshot(self, entries: Sequence[KVEntry], of_job: bool | None) -> Snapshot:
        before, now = self._entries, {entry.key: entry for entry in entries}
        try:
            for key in [key for key in before if key not in now]:
                self._decoder.remove(key)
            for key, entry in now.items():
                if before.get(key) is not entry:
                    self._decoder.put(entry)
            self._entries = now
            return self._decoder.snapshot(of_job)
        except Exception:
            self._forget()
            raise


class _Night:
    """What a night has decoded.

    :param is_shared: whether its processes share the decoders of snapshots.
    """

    def __init__(self, *, is_shared: bool) -> None:
        self.is_shared = is_shared
        self.parsed: dict[str, _Parsed] = {}
        # Entries are in their values too, so that no others get their IDs.
        self.snapshots: dict[tuple[Any, ...], tuple[Sequence[KVEntry], Snapshot]] = {}
        self.decoders: dict[Keys, _Decoder] = {}
        self.instructions: dict[str, Instructions] = {}


_night = _Night(is_shared=False)
# The other caches, each of which has values of one night.
_caches: list[Any] = []
_is_entry, _decode = answers.is_entry, snapshot.decode_snapshot


def _cached(function: Callable[..., Any]) -> Any:
    found = lru_cache(_MOST)(function)
    _caches.append(found)
    return found


@contextlib.contextmanager
def night(*, is_shared: bool) -> Iterator[None]:
    """Forget what the night before has decoded, and collect its garbage; that of this night is left to the next one.

    :param is_shared: whether a snapshot is made by decoding only the keys that differ from those of the snapshot before.
    """
    global _night
    _night = _Night(is_shared=is_shared)
    for one in _caches:
        one.cache_clear()
    gc.collect()
    # What is still there stays there, so the next collection need not scan it.
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def install() -> None:
    """Put the caches into the modules of the collection, once."""
    if vars(snapshot)["decode_record"] is not decode_record:
        return
    vars(snapshot).update(
        decode_record=_cached(decode_record),
        decode_ledger=_cached(decode_ledger),
        is_valid_name=_cached(is_valid_name),
    )
    vars(answers).update(_is_base64=_cached(answers._is_base64), is_entry=_is_entry_or_parsed)
    vars(client).update(
        base64=SimpleNamespace(b64decode=_cached(base64.b64decode), b64encode=base64.b64encode),
        json=SimpleNamespace(loads=_loads, dumps=json.dumps),
    )
    mock.patch.object(client.ConsulClient, "_entries", staticmethod(_entries)).start()
    vars(store).update(decode_snapshot=_snapshot_of_store)
    vars(gate_question).update(decode_snapshot=_snapshot)
    for module in (blockers, opened_gates):
        vars(module).update(outside_hours=_outside_hours)
    # What is encoded is not changed meanwhile, so it need not be copied.
    vars(values).update(asdict=lambda one: {field.name: getattr(one, field.name) for field in fields(one)})
    vars(store).update(getpass=SimpleNamespace(getuser=_cached(getpass.getuser)))
    cached: dict[Any, Any] = {parse: _parse, check_name: _cached(check_name)}
    for module in [one for name, one in sys.modules.items() if name.startswith(_COLLECTION)]:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value in cached and value.__module__ != module.__name__:
                setattr(module, name, cached[value])


def _loads(text: str) -> Any:
    """Parse an answer. Entries with the same text are the same objects."""
    if not isinstance(text, Body):
        return json.loads(text)
    known, results = _night.parsed, []
    for one in text.entries:
        found = known.get(one)
        if found is None:
            found = known[one] = _Parsed(json.loads(one))
            assert _is_entry(found), one
            value = base64.b64decode(found["Value"] or "")
            found.entry = KVEntry(found["Key"], value, found["ModifyIndex"], found["Flags"], found.get("Session") or "")
        results.append({"KV": found})
    return {"Results": results, "Errors": None}


def _is_entry_or_parsed(found: Any) -> bool:
    return isinstance(found, _Parsed) or _is_entry(found)


def _entries(found: Iterable[dict[str, Any]]) -> list[KVEntry]:
    return [
        one.entry
        if isinstance(one, _Parsed)
        else KVEntry(
            one["Key"],
            base64.b64decode(one["Value"] or ""),
            one["ModifyIndex"],
            one.get("Flags") or 0,
            one.get("Session") or "",
        )
        for one in found
    ]


def _snapshot(keys: Keys, entries: Iterable[KVEntry], of_job: bool | None = None) -> Snapshot:
    """Return the snapshot of entries; that of the same entries is decoded once."""
    return _remembered(keys, list(entries), of_job, is_shared=False)


def _snapshot_of_store(keys: Keys, entries: Iterable[KVEntry], of_job: bool | None = None) -> Snapshot:
    return _remembered(keys, list(entries), of_job, is_shared=_night.is_shared)


def _remembered(keys: Keys, entries: Sequence[KVEntry], of_job: bool | None, *, is_shared: bool) -> Snapshot:
    known = _night.snapshots
    what = (keys, of_job, *map(id, entries))
    found = known.get(what)
    if found is None:
        if len(known) >= _MOST_SNAPSHOTS:
            known.clear()
        if is_shared:
            decoder = _night.decoders.setdefault(keys, _Decoder(keys))
            found = entries, decoder.snapshot(entries, of_job)
        else:
            found = entries, _decode(keys, entries, of_job)
        known[what] = found
    return found[1]


def _parse(raw: Mapping[str, Any]) -> Instructions:
    """Return the parsed instructions; those with the same text are parsed once."""
    text, known = repr(raw), _night.instructions
    if text not in known:
        known[text] = parse(raw)
    return known[text]


def _outside_hours(windows: Sequence[Window], freezes: Sequence[Freeze], now: float) -> OutsideHours | None:
    """Return why no host may be admitted at a time: the same for each moment of a minute, as rules of nights name no seconds."""
    return _outside_hours_in(tuple(windows), tuple(freezes), math.floor(now / 60)) if windows or freezes else None


@lru_cache(_MOST)
def _outside_hours_in(windows: tuple[Window, ...], freezes: tuple[Freeze, ...], minute: int) -> OutsideHours | None:
    return outside_hours(windows, freezes, 60 * minute)
