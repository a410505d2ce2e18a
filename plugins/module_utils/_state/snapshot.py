# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode the entries of one read into a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from .._codecs.migration import decode_migration, decode_schema, release_of
from .._codecs.provider import decode_provider
from .._codecs.record import decode_record
from .._codecs.values import (
    decode_approval,
    decode_health_mark,
    decode_hold,
    decode_ledger,
    decode_version,
    text_of,
    version_in_key,
)
from .._common.clock import LATEST
from .._common.names import is_valid_name
from .._common.sanitize import truncate_middle, truncated_repr
from .._consul.client import KVEntry
from .._fleet.fleet import HostRecord, Snapshot, VersionReport, is_outdated
from .._fleet.gates import Gates, GateValue
from .._fleet.health_marks import Approval, HealthMark
from .._fleet.holds import PAUSED, PUPPET, Hold, Holds
from .._fleet.providers import Provider
from .keys import Keys
from .legacy_keys import LegacyKeys


def decode_snapshot(keys: Keys, entries: Iterable[KVEntry]) -> Snapshot:
    """Return the snapshot of the entries of :meth:`ConsulClient.read`, in layout 0, layout 1 or both.

    A pause of python-jiocloud counts as a hold. So the gates of a host give the same answer before, during and after a
    migration, which turns pauses into holds before it removes them. The latest report of a host counts in either layout,
    because nodes with the old code go on writing to layout 0.

    :raises UpgradeError: ``unreadable_ledger``, ``unreadable_schema``.
    """
    found: dict[str, Any] = {}
    warnings: list[str] = []
    reports: dict[str, list[tuple[VersionReport, str]]] = {}
    old = LegacyKeys(keys.prefix)
    gates, legacy_gates, holds = _Scoped("gate"), _Scoped("gate"), _Scoped("hold")
    legacy_reports: dict[str, list[tuple[VersionReport, str]]] = {}
    records: dict[str, HostRecord] = {}
    leases: set[str] = set()
    marks: dict[str, HealthMark] = {}
    approvals: dict[str, Approval] = {}
    providers: dict[str, Provider] = {}
    newest = 0
    for key, value, index, flags in entries:
        newest = max(newest, index)
        if key.startswith(keys.reports):
            parts = key[len(keys.reports) :].split("/")
            if len(parts) == 2 and parts[0] and _is_named(parts[1]):
                report = VersionReport(version_in_key(parts[0]), _unix_time(value), index, published=flags, key=key)
                reports.setdefault(parts[1], []).append((report, key))
            elif parts[-1]:
                warnings.append(f"{truncated_repr(key)} is ignored: it is not running/versions/<version>/<host>.")
        elif key.startswith(keys.gates):
            gates.add(key, key[len(keys.gates) :], GateValue(key, text_of(value), flags, index), warnings)
        elif key.startswith(old.gates):
            place = old.gate_of(key)
            if place is not None and (place[1] is None or _is_named(place[1])):
                legacy_gates.set(*place, GateValue(key, text_of(value), flags, index))
        elif key.startswith(old.reports):
            parsed = old.report_of(key)
            if parsed is not None and _is_named(parsed[1]):
                report = VersionReport(version_in_key(parsed[0]), _unix_time(value), index, True, key=key)
                legacy_reports.setdefault(parsed[1], []).append((report, key))
            elif not key.endswith("/"):
                warnings.append(f"{truncated_repr(key)} is ignored: it is not running_version/<version>/<host>.")
        elif key.startswith(keys.records):
            host = key[len(keys.records) :]
            if _is_named(host):
                records[host] = replace(decode_record(key, value), index=index)
            elif host and not host.endswith("/"):
                warnings.append(f"{truncated_repr(key)} is ignored: it is not a record of a host.")
        elif key.startswith(keys.leases):
            leases.add(key[len(keys.leases) :])
        elif key.startswith(keys.marks):
            mark = decode_health_mark(value)
            if mark is not None and _is_named(key[len(keys.marks) :]):
                marks[key[len(keys.marks) :]] = replace(mark, written=flags & 255, written_at=flags >> 8)
        elif key.startswith(keys.providers):
            if _is_named(name := key[len(keys.providers) :]):
                providers[name] = decode_provider(key, value)
        elif key.startswith(keys.approvals):
            approval = decode_approval(value)
            if approval is not None and _is_named(key[len(keys.approvals) :]):
                approvals[key[len(keys.approvals) :]] = approval
        elif key == keys.holds:
            found["hold_index"] = index
        elif key.startswith(keys.holds):
            holds.add(key, key[len(keys.holds) :], decode_hold(key, value), warnings)
        elif key == keys.ledger:
            found |= {"ledger": decode_ledger(key, value), "ledger_index": index}
        elif key == keys.current_version:
            found |= {"current_version": decode_version(key, value), "version_index": index}
        elif key == keys.schema:
            found |= {"schema": decode_schema(key, value), "release": release_of(flags)}
        elif key == keys.migration:
            found["migration"] = decode_migration(value)
    current = found.get("current_version")
    in_legacy_place = Gates(legacy_gates.everywhere, legacy_gates.roles, legacy_gates.hosts)
    for scope, of, gate in in_legacy_place.paused(current):
        if holds.at(scope, of) is None:
            held = (
                truncate_middle(truncated_repr(gate.text)) if gate.text is not None else "bytes that are not UTF-8 text"
            )
            holds.set(scope, of, Hold(gate.key, f"{gate.key} is {held}, an operator's pause", PAUSED))
    reported = dict(_latest(reports, current, warnings))
    for host, report in _latest(legacy_reports, current, warnings):
        reported[host] = _later(report, reported[host], records.get(host)) if host in reported else report
    return Snapshot(
        reports=reported,
        records=records,
        gates=Gates(gates.everywhere, gates.roles, gates.hosts),
        legacy_gates=in_legacy_place,
        legacy_reports=frozenset(legacy_reports),
        holds=Holds(holds.everywhere, holds.roles, holds.hosts, own_holds(keys, records)),
        leases=frozenset(leases),
        marks=marks,
        approvals=approvals,
        providers=providers,
        index=newest,
        warnings=tuple(warnings),
        **found,
    )


def own_holds(keys: Keys, records: Mapping[str, HostRecord]) -> Mapping[str, Hold]:
    """Return the holds that hosts report of themselves in their records."""
    return {
        host: Hold(keys.record(host), record.held or "no reason given", PUPPET)
        for host, record in records.items()
        if record.held is not None
    }


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
            self.set(scope, None, value)
        elif scope in ("role", "host") and _is_named(name):
            self.set(scope, name, value)
        elif below and not below.endswith("/"):
            warnings.append(
                f"{truncated_repr(key)} is ignored: it is not a {self.what} of a host, a role or everything."
            )

    def at(self, scope: str, name: str | None) -> Any:
        return self.everywhere if name is None else (self.roles if scope == "role" else self.hosts).get(name)

    def set(self, scope: str, name: str | None, value: Any) -> None:
        """Store the value of a scope and name that are known to be valid."""
        if name is None:
            self.everywhere = value
        else:
            (self.roles if scope == "role" else self.hosts)[name] = value


def _is_named(text: str) -> bool:
    """Return whether a part of a key is a name. Consul replaces bytes of a key that are not UTF-8."""
    return "\ufffd" not in text and is_valid_name(text)


def _unix_time(value: bytes) -> float | None:
    try:
        at = float(value)
    except ValueError:
        return None
    return at if 0 <= at < LATEST else None


def _latest(
    reports: Mapping[str, list[tuple[VersionReport, str]]], current: str | None, warnings: list[str]
) -> Iterator[tuple[str, VersionReport]]:
    # Old nodes write the new report and remove the former one in two requests, so a host may have reports of two versions.
    # The latest counts; at the same time, the one that is not the current version, so that no upgrade is left out.
    for host, found in reports.items():
        if len(found) > 1:
            found.sort(key=lambda one: (one[0].at is not None, one[0].at or 0, one[0].version != current))
            chosen = found[-1][0].version
            others = ", ".join(key for _report, key in found[:-1])
            warnings.append(f"{host} reported several versions; {chosen!r} counts. Ignored: {others}.")
        yield host, found[-1][0]


def _later(old: VersionReport, new: VersionReport, record: HostRecord | None) -> VersionReport:
    """Return the one of a host's two reports that counts.

    :param old: its report in layout 0.
    :param new: its report in layout 1.
    """
    if (old.version, old.at) == (new.version, new.at):
        # A migration has copied the report, so it is as old as the first of the two.
        return replace(new, index=min(old.index, new.index))
    if is_outdated(old.index, new.index, record.index if record is not None and record.has_reported else 0):
        return new
    return max(old, new, key=lambda one: (one.at is not None, one.at or 0, one.index))
