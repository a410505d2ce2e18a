# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Raw keys to typed values and back, in one place.

Old fleets hold odd keys: folder placeholders, empty values, bytes that are no text. None of them stops a
reader here. What can't be read is counted the safe way (a hold holds, a record has failed) or, for a gate,
kept as it is, so that whoever needs it tells which key it was. Texts for people are made printable here, so
that nobody's words act on the terminal that shows them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

from .._model.errors import UpgradeError
from .._model.fleet import FAILED, POST_STATES, RECORD_STATES, Record, Report, Snapshot
from .._model.gates import Gates, GateValue
from .._model.holds import Hold, Holds
from .._model.ledger import Ledger
from .._model.marks import Approval, Mark
from .._model.names import check_version
from .._model.providers import Provider
from .._model.shown import bounded, printable, shown
from .client import Entry
from .keys import Keys
from .provider_codec import decode_provider

# What this collection writes is nested five levels deep.
_DEEPEST = 40
# No time and no count is above that.
_MOST = 2**53
# In characters. What a host says of itself is written on by planners, in one transaction with what many others say, and
# Consul takes no more than half a megabyte.
_LONGEST_ERROR = 4200
_LONGEST_NAME = 255
_MOST_DONE = 20_000
_MOST_TIMES = 20
_MOST_IN_EVENT = 20_000
_LEDGER_LISTS = ("broken", "stopped")
_LEDGER_TEXTS = ("who", "word")
# Who approved where the approval does not say it, and words that approve nothing.
SOMEBODY = "somebody"
_NO = ("", "no", "false", "0", "null", "none")
_LEDGER_FIELDS = [one.name for one in fields(Ledger)]


def text_of(value: bytes) -> str | None:
    """Return the bytes as text, None where they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def decode_data(value: bytes) -> Any:
    """Return the JSON in a value.

    :raises ValueError: where it is none, or is nested so deeply that whoever goes through it could stumble.
    """
    try:
        data = json.loads(value)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if value.count(b"[") + value.count(b"{") > _DEEPEST:
        level = [data]
        for _depth in range(_DEEPEST):
            level = [below for one in level for below in _below(one)]
        if level:
            raise ValueError("it is nested too deeply")
    return data


def _below(data: Any) -> Iterable[Any]:
    if isinstance(data, dict):
        return data.values()
    return data if isinstance(data, list) else ()


def decode_version(value: bytes) -> str | None:
    """Return a version without the white space that old tools left around it; None for an empty one."""
    return (text_of(value) or "").strip() or None


def decode_ledger(key: str, value: bytes) -> Ledger:
    """Return the ledger.

    :raises UpgradeError: ``unreadable_ledger``.
    """
    try:
        data = decode_data(value)
        if not isinstance(data, dict):
            raise ValueError("it is no mapping of names to values")
        missing = [name for name in ("epoch", "version") if name not in data]
        if missing:
            raise ValueError(f"it has no {' and no '.join(missing)}")
        return Ledger(**{name: _plain(name, data[name]) for name in _LEDGER_FIELDS if name in data})
    except (ValueError, TypeError) as error:
        raise UpgradeError(
            "unreadable_ledger",
            f"The ledger {key} can't be read ({error}), so nobody knows which rules hold, and nothing is opened. "
            f"Restore it from a backup, or delete {key} to let the next consul_upgrade_plan begin a new one.",
            key=key,
        ) from error


def _plain(name: str, value: Any) -> Any:
    if name in _LEDGER_TEXTS:
        return _all_printable(value)
    return tuple(value) if name in _LEDGER_LISTS and isinstance(value, list) else value


def _all_printable(data: Any) -> Any:
    """Return plain data with all of its texts printable, names too."""
    if isinstance(data, dict):
        return {_all_printable(name): _all_printable(value) for name, value in data.items()}
    if isinstance(data, list):
        return [_all_printable(value) for value in data]
    return printable(data) if isinstance(data, str) else data


def encode_ledger(ledger: Ledger) -> str:
    """Return the ledger as it is stored."""
    data = {
        name: value
        for name, value in asdict(ledger).items()
        if value is not None and value is not False and value not in ({}, ()) and (name, value) != ("commit", "")
    }
    return json.dumps(data, sort_keys=True)


def decode_record(key: str, value: bytes) -> Record:
    """Return a host's record; one that can't be read counts as failed, so that it keeps its slot.

    Texts without end are cut, and names without end can't be read. All texts are printable.
    """
    try:
        data = decode_data(value)
        texts = {name: _optional_text(data.get(name)) for name in ("service", "step", "error", "reported", "origin")}
        version, state, attempt = data["version"], data["state"], data.get("attempt", 1)
        if (
            not _is_version(version)
            or state not in RECORD_STATES
            or not isinstance(attempt, int)
            or abs(attempt) >= _MOST
        ):
            raise ValueError(f"version {shown(version)}, state {shown(state)}, attempt {shown(attempt)}")
        return Record(
            version,
            state,
            _bounded(texts["service"], _LONGEST_NAME),
            _bounded(texts["step"], _LONGEST_NAME),
            attempt,
            _bounded(texts["error"], _LONGEST_ERROR),
            _times(data.get("times")),
            _name(texts["reported"]),
            _units(data.get("done")),
            _post(data.get("post")),
            _name(texts["origin"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error)
        return Record(
            version="",
            state=FAILED,
            error=f"the record {key} can't be read ({reason}); let the host report again, or delete the key",
            readable=False,
        )


def encode_record(record: Record) -> str:
    """Return a host's record as it is stored."""
    return json.dumps(
        {name: value for name, value in record.plain().items() if value not in (None, [])}, sort_keys=True
    )


def decode_hold(key: str, value: bytes) -> Hold:
    """Return a hold; one that can't be read holds all the same."""
    try:
        data = decode_data(value)
        given = {name: _said(data[name]) for name in ("reason", "by", "at") if data.get(name) not in (None, "")}
        return Hold(key, **given)
    except (ValueError, TypeError, AttributeError):
        text = (text_of(value) or "").strip()
        return Hold(key, reason=bounded(text)) if text and text.isprintable() else Hold(key)


def decode_mark(value: bytes) -> Mark | None:
    """Return what planners have seen of a host's health; what can't be read is seen anew."""
    try:
        data = decode_data(value)
        since, reported = (None if data.get(name) is None else _time(data[name]) for name in ("since", "reported"))
        upgraded, lost = data.get("upgraded") is True, data.get("lost") is True
        return Mark(str(data["version"]), since, upgraded, reported, lost)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None


def encode_mark(mark: Mark) -> str:
    """Return a mark as it is stored."""
    return json.dumps(mark.plain(), sort_keys=True)


def decode_approval(value: bytes) -> Approval | None:
    """Return somebody's approval. Any words are one, as written by hand, but for a no; what can't be read is none."""
    text = (text_of(value) or "").strip(" \t\r\n\"'")
    if not text.startswith(("{", "[")):
        return Approval(SOMEBODY, 0, bounded(text)) if text.isprintable() and text.lower() not in _NO else None
    try:
        data = decode_data(value)
        by, at, reason = data.get("by") or SOMEBODY, data.get("at"), data.get("reason") or ""
    except (ValueError, AttributeError):
        return None
    is_time = isinstance(at, int) and abs(at) < _MOST
    return Approval(_said(by), at if is_time else 0, _said(reason))


def encode_approval(word: Mapping[str, object]) -> str:
    """Return somebody's approval as it is stored."""
    return json.dumps(dict(word), sort_keys=True)


def encode_event(event: Mapping[str, Any]) -> str:
    """Return an entry of the history as it is stored: the rules as they are, and reasons cut so that all have room."""
    told = sum(len(event[name]) for name in ("hosts", "roles") if isinstance(event.get(name), Mapping))
    most = max(100, min(2000, _MOST_IN_EVENT // max(1, told)))
    return json.dumps(
        {name: value if name == "instructions" else _cut(value, most) for name, value in event.items()}, sort_keys=True
    )


def decode_event(value: bytes) -> dict[str, Any] | None:
    """Return an entry of the history, None for one that can't be read."""
    try:
        event = decode_data(value)
    except ValueError:
        return None
    found: dict[str, Any] | None = _all_printable(event) if isinstance(event, dict) else None
    return found


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _cut(one, most) for name, one in value.items()}
    return bounded(value, most) if isinstance(value, str) else value


def _bounded(text: str | None, most: int) -> str | None:
    return None if text is None else bounded(printable(text), most)


def _said(value: object) -> str:
    return bounded(printable(str(value)))


def _name(text: str | None) -> str | None:
    if text is not None and len(text) > _LONGEST_NAME:
        raise ValueError(f"{shown(text)} is no name")
    return None if text is None else printable(text)


def _optional_text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not a text")
    return value


def _units(value: object) -> tuple[str, ...]:
    if value is not None and not (isinstance(value, list) and all(isinstance(unit, str) for unit in value)):
        raise ValueError(f"done {shown(value)}")
    if sum(map(len, value or ())) > _MOST_DONE:
        raise ValueError(f"done has more than {_MOST_DONE} characters")
    return tuple(map(printable, value or ()))


def _post(value: object) -> str | None:
    if value is not None and value not in POST_STATES:
        raise ValueError(f"post {shown(value)}")
    return str(value) if value is not None else None


def _times(value: object) -> Mapping[str, int]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MOST_TIMES or any(len(name) > _LONGEST_NAME for name in value):
        raise ValueError(f"times {shown(value)}")
    return {printable(name): _time(at) for name, at in value.items()}


def _time(value: Any) -> int:
    at = int(value)
    if abs(at) >= _MOST:
        raise ValueError(f"{shown(value)} is no unix time")
    return at


def _is_version(value: object) -> bool:
    # Planners publish it as a part of a key.
    try:
        return bool(check_version(value, "version"))
    except UpgradeError:
        return False


def decode_snapshot(keys: Keys, entries: Iterable[Entry]) -> Snapshot:
    """Return what the entries of :meth:`SnapshotReader.read` say.

    :raises UpgradeError: ``unreadable_ledger``, ``unreadable_schema``.
    """
    found: dict[str, Any] = {}
    warnings: list[str] = []
    reports: dict[str, list[tuple[Report, str]]] = {}
    gates, holds = _Scoped("gate"), _Scoped("hold")
    records: dict[str, Record] = {}
    driven: set[str] = set()
    marks: dict[str, Mark] = {}
    approvals: dict[str, Approval] = {}
    providers: dict[str, Provider] = {}
    newest = 0
    for key, value, index, flags in entries:
        newest = max(newest, index)
        if key.startswith(keys.reports):
            parts = key[len(keys.reports) :].split("/")
            if len(parts) == 2 and all(parts) and "\ufffd" not in key:
                reports.setdefault(parts[1], []).append((Report(parts[0], _unix_time(value), index), key))
            elif parts[-1]:
                warnings.append(f"{key!r} is passed over: it is not running/versions/<version>/<host>.")
        elif key.startswith(keys.gates):
            gates.add(key, key[len(keys.gates) :], GateValue(key, text_of(value), flags), warnings)
        elif key.startswith(keys.records):
            host = key[len(keys.records) :]
            if host and "/" not in host:
                records[host] = replace(decode_record(key, value), index=index)
        elif key.startswith(keys.drivers):
            driven.add(key[len(keys.drivers) :])
        elif key.startswith(keys.marks):
            mark = decode_mark(value)
            if mark is not None:
                marks[key[len(keys.marks) :]] = mark
        elif key.startswith(keys.approvals):
            approval = decode_approval(value)
            if approval is not None:
                approvals[key[len(keys.approvals) :]] = approval
        elif key.startswith(keys.providers):
            if (name := key[len(keys.providers) :]) and "/" not in name:
                providers[name] = decode_provider(key, value)
        elif key == keys.holds:
            found["hold_index"] = index
        elif key.startswith(keys.holds):
            holds.add(key, key[len(keys.holds) :], decode_hold(key, value), warnings)
        elif key == keys.ledger:
            found |= {"ledger": decode_ledger(key, value), "ledger_index": index}
        elif key == keys.current_version:
            found |= {"current_version": decode_version(value), "version_index": index}
        elif key == keys.schema:
            found["schema"] = _schema(key, value)
    current = found.get("current_version")
    return Snapshot(
        reports=dict(_latest(reports, current, warnings)),
        records=records,
        gates=Gates(gates.everywhere, gates.roles, gates.hosts),
        holds=Holds(holds.everywhere, holds.roles, holds.hosts),
        driven=frozenset(driven),
        marks=marks,
        approvals=approvals,
        providers=providers,
        index=newest,
        warnings=tuple(warnings),
        **found,
    )


class _Scoped:
    """Sorts keys of the form ``global``, ``role/<role>``, ``host/<host>``."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.everywhere: Any = None
        self.roles: dict[str, Any] = {}
        self.hosts: dict[str, Any] = {}

    def add(self, key: str, below: str, value: Any, warnings: list[str]) -> None:
        scope, _slash, name = below.partition("/")
        if below == "global":
            self.everywhere = value
        elif scope == "role" and name and "/" not in name:
            self.roles[name] = value
        elif scope == "host" and name and "/" not in name:
            self.hosts[name] = value
        elif below and not below.endswith("/"):
            warnings.append(f"{key!r} is passed over: it is no {self.what} of a host, a role or everything.")


def _unix_time(value: bytes) -> float | None:
    try:
        at = float(value)
    except ValueError:
        return None
    return at if abs(at) < 1e12 else None


def _schema(key: str, value: bytes) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise UpgradeError(
            "unreadable_schema",
            f"{key} holds {shown(value)}, which is no version of the layout. Restore it from a backup, or delete it.",
            key=key,
        ) from error


def _latest(
    reports: Mapping[str, list[tuple[Report, str]]], current: str | None, warnings: list[str]
) -> Iterator[tuple[str, Report]]:
    # Old nodes wrote the new report and removed the former one in two requests, so a host may stand under two
    # versions. The latest word counts; where the times don't tell, it is the one that leaves work to be done.
    for host, found in reports.items():
        if len(found) > 1:
            found.sort(key=lambda one: (one[0].at is not None, one[0].at or 0, one[0].version != current))
            chosen = found[-1][0].version
            others = ", ".join(key for _report, key in found[:-1])
            warnings.append(f"{host} reported several versions; {chosen!r} is taken, and passed over: {others}.")
        yield host, found[-1][0]
