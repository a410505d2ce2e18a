# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decode the entries of one read into a snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from .._codecs.handover import decode_answer, decode_handover
from .._codecs.job import decode_job_record
from .._codecs.migration import decode_migration, decode_schema, release_of
from .._codecs.provider import decode_provider
from .._codecs.record import decode_record
from .._codecs.values import (
    decode_approval,
    decode_health_mark,
    decode_hold,
    decode_ledger,
    decode_version,
    ledger_of_versions,
    text_of,
    version_in_key,
)
from .._common.clock import LATEST
from .._common.errors import UpgradeError
from .._common.names import is_job, is_valid_name
from .._common.sanitize import truncate_middle, truncated_repr
from .._consul.client import KVEntry
from .._fleet.fleet import STARTED, HostRecord, Snapshot, VersionReport
from .._fleet.gates import Gates, GateValue
from .._fleet.health_marks import Approval, HealthMark
from .._fleet.holds import PAUSED, Hold, Holds, own_hold
from .._fleet.ledger import COMPLETE, Handover, Ledger, PlannerAnswer
from .._fleet.providers import Provider
from .keys import Keys
from .legacy_keys import LegacyKeys
from .version_reports import VersionReports


def decode_snapshot(keys: Keys, entries: Iterable[KVEntry], of_job: bool | None = None) -> Snapshot:
    """Return the snapshot of the entries of :meth:`ConsulClient.read`, in layout 0, layout 1 or both.

    :param of_job: as for :meth:`SnapshotDecoder.snapshot`.
    :raises UpgradeError: what :meth:`SnapshotDecoder.snapshot` raises.
    """
    decoder = SnapshotDecoder(keys)
    for entry in entries:
        decoder.put(entry)
    return decoder.snapshot(of_job)


class SnapshotDecoder:
    """Decodes the keys of a fleet into snapshots. Only keys that have changed since the snapshot before are decoded again.

    Values of unchanged keys are the same objects in each snapshot.
    """

    def __init__(self, keys: Keys) -> None:
        """Keep the names of the keys."""
        self._keys = keys
        self._old = LegacyKeys(keys.prefix)
        self._reports = VersionReports()
        self._gates, self._legacy_gates, self._holds = _Scoped(), _Scoped(), _Scoped()
        self._records: dict[str, HostRecord] = {}
        self._job_gates = _Scoped()
        self._job_records: dict[str, HostRecord] = {}
        self._own_holds: dict[str, Hold] = {}
        self._leases: set[str] = set()
        self._marks: dict[str, HealthMark] = {}
        self._job_marks: dict[str, HealthMark] = {}
        self._approvals: dict[str, Approval] = {}
        self._providers: dict[str, Provider] = {}
        self._answers: dict[str, PlannerAnswer] = {}
        # Keys with one value, and sentences on keys that are ignored.
        self._single: dict[str, KVEntry] = {}
        self._ignored: dict[str, str] = {}
        self._newest = 0
        self._single_keys = frozenset(
            (
                keys.holds,
                keys.ledger,
                keys.current_version,
                keys.current_job,
                keys.schema,
                keys.migration,
                keys.handover,
            )
        )

    def put(self, entry: KVEntry) -> None:
        """Take a key as it is now."""
        self._newest = max(self._newest, entry.modify_index)
        self._take(entry.key, entry)

    def remove(self, key: str) -> None:
        """Forget a key."""
        self._take(key, None)

    def snapshot(self, of_job: bool | None = None) -> Snapshot:
        """Return the snapshot of all keys: of the rollout to a version, or of the job (:func:`_of_job`).

        :param of_job: which of the two; None for the one that the ledger is for. A job that is complete gives way to versions.

        A pause of python-jiocloud counts as a hold. So the gates of a host give the same answer before, during and after a
        migration, which turns pauses into holds before it removes them. The latest report of a host counts in either layout,
        because nodes with the old code go on writing to layout 0.

        :raises UpgradeError: ``unreadable_ledger``, ``unreadable_version``, ``unreadable_schema``.
        """
        found = self._singles()
        current = found.get("current_version")
        gates, holds = self._gates.copy(), self._holds.copy()
        legacy_gates = Gates(**self._legacy_gates.copy())
        for scope, of, gate in legacy_gates.paused(current):
            if Holds(**holds).at(scope, of) is None:
                text = gate.text
                held = truncate_middle(truncated_repr(text)) if text is not None else "bytes that are not UTF-8 text"
                hold = Hold(gate.key, f"{gate.key} is {held}, an operator's pause", PAUSED)
                _set(holds, scope, of, hold)
        reports, warnings = self._reports.counting(current, self._records)
        ledger = found.get("ledger")
        if of_job is None:
            of_job = ledger is not None and ledger.is_job and ledger.state != COMPLETE
        if of_job:
            versions = Snapshot(
                current_version=current,
                reports=reports,
                records=dict(self._records),
                gates=Gates(**gates),
                holds=Holds(**holds, own=dict(self._own_holds)),
            )
            return self._of_job(found, versions, (*self._ignored.values(), *warnings))
        if ledger is not None and ledger.is_job:
            found |= {"job": ledger, "ledger": self._before_job(ledger)}
        return Snapshot(
            busy=_started(self._job_records),
            job_hosts=frozenset(self._job_records),
            has_job_keys=self._has_job_keys(),
            reports=reports,
            records=dict(self._records),
            gates=Gates(**gates),
            legacy_gates=legacy_gates,
            legacy_reports=self._reports.legacy_hosts,
            holds=Holds(**holds, own=dict(self._own_holds)),
            leases=frozenset(self._leases),
            marks=dict(self._marks),
            approvals=dict(self._approvals),
            providers=dict(self._providers),
            index=self._newest,
            warnings=(*self._ignored.values(), *warnings),
            **found,
        )

    def _of_job(self, found: dict[str, Any], versions: Snapshot, warnings: tuple[str, ...]) -> Snapshot:
        """Return the snapshot of the job: its target, gates and records in the place of those of versions.

        Hosts that have started an upgrade and not ended it are busy. Puppet's gates are not among those of the job.

        :param found: the keys with one value.
        """
        entry = self._single.get(self._keys.current_job)
        target = (text_of(entry.value) or "").strip() if entry is not None else ""
        found |= {
            "current_version": target if is_job(target) else None,
            "version_index": entry.modify_index if entry is not None else 0,
        }
        return Snapshot(
            records=dict(self._job_records),
            gates=Gates(**self._job_gates.copy()),
            legacy_gates=Gates(**self._legacy_gates.copy()),
            holds=versions.holds,
            leases=frozenset(self._leases),
            marks=dict(self._job_marks),
            approvals=dict(self._approvals),
            providers=dict(self._providers),
            is_job=True,
            versions=versions,
            busy=_started(versions.records),
            job_hosts=frozenset(self._job_records),
            others=frozenset(versions.reports.keys() | versions.records.keys()),
            has_job_keys=self._has_job_keys(),
            index=self._newest,
            warnings=warnings,
            **found,
        )

    def _has_job_keys(self) -> bool:
        gates = self._job_gates.copy()
        return self._keys.current_job in self._single or any(gates.values())

    def _before_job(self, ledger: Ledger) -> Ledger | None:
        try:
            return ledger_of_versions(ledger)
        except (ValueError, TypeError) as error:
            raise UpgradeError(
                "unreadable_ledger",
                f"The ledger {self._keys.ledger} keeps the last rollout to a version in its field before, which can't be read ({error}), so "
                "the rules are unknown and no host is admitted. Restore it from a backup.",
                key=self._keys.ledger,
            ) from error

    def _singles(self) -> dict[str, Any]:
        keys = self._keys
        found: dict[str, Any] = {}
        if entry := self._single.get(keys.holds):
            found["hold_index"] = entry.modify_index
        if entry := self._single.get(keys.ledger):
            found |= {"ledger": decode_ledger(entry.key, entry.value), "ledger_index": entry.modify_index}
        if entry := self._single.get(keys.current_version):
            found |= {"current_version": decode_version(entry.key, entry.value), "version_index": entry.modify_index}
        if entry := self._single.get(keys.schema):
            found |= {"schema": decode_schema(entry.key, entry.value), "release": release_of(entry.flags)}
        if entry := self._single.get(keys.migration):
            found["migration"] = decode_migration(entry.value)
        if (entry := self._single.get(keys.handover)) and (handover := _handover(entry)):
            given = {name: one.refusal for name, one in self._answers.items() if one.handover == handover.id}
            found |= {"handover": handover, "answers": given}
        return found

    def _take(self, key: str, entry: KVEntry | None) -> None:
        """Take or forget a key, whichever folder it is in."""
        keys, old = self._keys, self._old
        self._ignored.pop(key, None)
        if key in self._single_keys:
            _put(self._single, key, entry)
        elif key.startswith(keys.reports):
            self._take_report(key, entry)
        elif key.startswith(keys.gates):
            self._take_scoped(self._gates, "gate", key, key[len(keys.gates) :], _gate(entry))
        elif key.startswith(old.gates):
            place = old.gate_of(key)
            if place is not None and (place[1] is None or _is_named(place[1])):
                self._legacy_gates.set(*place, _gate(entry))
        elif key.startswith(old.reports):
            self._take_legacy_report(key, entry)
        elif key.startswith(keys.records):
            self._take_record(key, entry)
        elif key.startswith(keys.job_gates):
            self._take_scoped(self._job_gates, "gate", key, key[len(keys.job_gates) :], _gate(entry))
        elif key.startswith(keys.job_records):
            if _is_named(name := key[len(keys.job_records) :]):
                _put(self._job_records, name, _job_record(entry) if entry is not None else None)
        elif key.startswith(keys.leases):
            (self._leases.discard if entry is None else self._leases.add)(key[len(keys.leases) :])
        elif key.startswith(keys.marks):
            if _is_named(name := key[len(keys.marks) :]):
                _put(self._marks, name, _mark(entry) if entry else None)
        elif key.startswith(keys.job_marks):
            if _is_named(name := key[len(keys.job_marks) :]):
                _put(self._job_marks, name, _mark(entry) if entry else None)
        elif key.startswith(keys.providers):
            if _is_named(name := key[len(keys.providers) :]):
                _put(self._providers, name, decode_provider(key, entry.value) if entry else None)
        elif key.startswith(keys.planners):
            if _is_named(name := key[len(keys.planners) :]):
                _put(self._answers, name, decode_answer(entry.value) if entry else None)
        elif key.startswith(keys.approvals):
            if _is_named(name := key[len(keys.approvals) :]):
                _put(self._approvals, name, decode_approval(entry.value) if entry else None)
        elif key.startswith(keys.holds):
            hold = decode_hold(key, entry.value) if entry is not None else None
            self._take_scoped(self._holds, "hold", key, key[len(keys.holds) :], hold)

    def _take_report(self, key: str, entry: KVEntry | None) -> None:
        version, slash, host = key[len(self._keys.reports) :].partition("/")
        if not slash or not version or not _is_named(host):
            if entry is not None and not key.endswith("/"):
                self._ignore(key, "running/versions/<version>/<host>")
        elif entry is None:
            self._reports.remove(host, key, is_legacy=False)
        else:
            self._reports.put(host, _report(entry, version))

    def _take_legacy_report(self, key: str, entry: KVEntry | None) -> None:
        parsed = self._old.report_of(key)
        if parsed is None or not _is_named(parsed[1]):
            if entry is not None and not key.endswith("/"):
                self._ignore(key, "running_version/<version>/<host>")
        elif entry is None:
            self._reports.remove(parsed[1], key, is_legacy=True)
        else:
            self._reports.put(parsed[1], _report(entry, parsed[0], is_legacy=True))

    def _take_record(self, key: str, entry: KVEntry | None) -> None:
        host = key[len(self._keys.records) :]
        if not _is_named(host):
            if entry is not None and host and not host.endswith("/"):
                self._ignore(key, "a record of a host")
            return
        record = decode_record(key, entry.value, entry.modify_index) if entry is not None else None
        _put(self._records, host, record)
        _put(self._own_holds, host, _own_hold(key, record) if record is not None else None)
        self._reports.record_changed(host)

    def _take_scoped(self, found: _Scoped, what: str, key: str, below: str, value: Any) -> None:
        scope, _slash, name = below.partition("/")
        if below == "global":
            found.set(scope, None, value)
        elif scope in ("role", "host") and _is_named(name):
            found.set(scope, name, value)
        elif value is not None and below and not below.endswith("/"):
            self._ignore(key, f"a {what} of a host, a role or everything")

    def _ignore(self, key: str, what: str) -> None:
        self._ignored[key] = f"{truncated_repr(key)} is ignored: it is not {what}."


class _Scoped:
    """Values of keys of the form ``global``, ``role/<role>``, ``host/<host>``."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {"everywhere": None, "roles": {}, "hosts": {}}

    def set(self, scope: str, name: str | None, value: Any) -> None:
        """Store the value of a scope and name that are known to be valid; None forgets it."""
        _set(self._found, scope, name, value)

    def copy(self) -> dict[str, Any]:
        """Return the values, which do not change any more."""
        found = self._found
        return {"everywhere": found["everywhere"], "roles": dict(found["roles"]), "hosts": dict(found["hosts"])}


def _set(found: dict[str, Any], scope: str, name: str | None, value: Any) -> None:
    if name is None:
        found["everywhere"] = value
    else:
        _put(found["roles" if scope == "role" else "hosts"], name, value)


def _put(found: dict[str, Any], name: str, value: Any) -> None:
    """Store a value; None forgets it."""
    if value is None:
        found.pop(name, None)
    else:
        found[name] = value


def _gate(entry: KVEntry | None) -> GateValue | None:
    if entry is None:
        return None
    return GateValue(entry.key, text_of(entry.value), entry.flags, entry.modify_index)


def _handover(entry: KVEntry) -> Handover | None:
    try:
        return decode_handover(entry.value)
    except ValueError:
        return None


def _report(entry: KVEntry, version: str, *, is_legacy: bool = False) -> VersionReport:
    published = 0 if is_legacy else entry.flags
    at, version = _unix_time(entry.value), version_in_key(version)
    return VersionReport(version, at, entry.modify_index, is_legacy, published, entry.key)


def _job_record(entry: KVEntry) -> HostRecord:
    return replace(decode_job_record(entry.key, entry.value), index=entry.modify_index)


def _started(records: Mapping[str, HostRecord]) -> dict[str, HostRecord]:
    """Return the hosts that have started and not ended, with their records."""
    return {host: record for host, record in records.items() if record.readable and record.state == STARTED}


def _mark(entry: KVEntry) -> HealthMark | None:
    mark = decode_health_mark(entry.value)
    return replace(mark, written=entry.flags & 255, written_at=entry.flags >> 8) if mark is not None else None


def _own_hold(key: str, record: HostRecord) -> Hold | None:
    """Return the hold that a host reports of itself."""
    return own_hold(key, record.held) if record.held is not None else None


def _is_named(text: str) -> bool:
    """Return whether a part of a key is a name. Consul replaces bytes of a key that are not UTF-8."""
    return "\ufffd" not in text and is_valid_name(text)


def _unix_time(value: bytes) -> float | None:
    try:
        at = float(value)
    except ValueError:
        return None
    return at if 0 <= at < LATEST else None
