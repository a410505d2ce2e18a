# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reports of hosts under ``running_version/<version>/<host>``, and their moves to the new layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....module_utils._codecs.values import text_of
from ....module_utils._common.errors import UpgradeError
from ....module_utils._common.names import check_name, check_version, in_order
from ....module_utils._common.sanitize import truncated_repr
from ....module_utils._consul.client import KVEntry
from ....module_utils._consul.operations import Change, compare, compare_and_put, remove
from ....module_utils._fleet.fleet import is_outdated
from ....module_utils._state.legacy_keys import LegacyKeys
from ..active_hosts import has_left_version, record_index
from ..step import KeyMove, KeyProblem, KeysFound


@dataclass(frozen=True, slots=True)
class _Report:
    """A report in either layout.

    :param at: when it was made (unix seconds); None if that can't be read.
    """

    version: str
    entry: KVEntry
    at: float | None

    @property
    def age(self) -> tuple[bool, float, int]:
        """The sort key that puts the latest report last. For equal times, Consul's index decides."""
        return self.at is not None, self.at or 0.0, self.entry.modify_index

    @property
    def text(self) -> str:
        return text_of(self.entry.value) or ""


def report_problems(found: KeysFound) -> list[KeyProblem]:
    """Return the legacy reports that can't be read or assigned, and the hosts that have reported two versions."""
    old = LegacyKeys(found.keys.prefix)
    wrong = []
    for entry in found.below(old.reports):
        if entry.key.endswith("/"):
            continue
        parts = old.report_of(entry.key)
        if parts is None or "\ufffd" in entry.key:
            why = f"is not {old.report('<version>', '<host>')}, so its host is unknown"
            wrong.append(KeyProblem(entry.key, why, "Delete it, or move it out of this folder."))
            continue
        try:
            check_version(parts[0], "version")
            check_name("host", parts[1], "host")
        except UpgradeError as error:
            wrong.append(KeyProblem(entry.key, f"has a name that is no longer allowed ({error.message})", "Delete it."))
            continue
        if _time(entry.value) is None:
            fix = f"Write a unix time, or delete it and let {parts[1]} report again."
            wrong.append(KeyProblem(entry.key, f"holds {_sanitized(entry.value)}, which is not a unix time", fix))
    return [*wrong, *_at_two_versions(found)]


def _at_two_versions(found: KeysFound) -> list[KeyProblem]:
    new, wrong = _by_host(_new(found)), []
    for host, reports in _by_host(_old(found)).items():
        latest = reports[-1]
        # During a migration, a host may have written its new report and not removed the former one yet.
        rivals = [one for one in reports[:-1] if not found.begun or one.at == latest.at]
        if not found.begun:
            rivals += [one for one in new.get(host, []) if one.version != latest.version and one.at == latest.at]
        for one in rivals:
            why = f"says that {host} runs {one.version}, and {latest.entry.key} says {latest.version}"
            if one.at != latest.at:
                why += ", which is newer"
            wrong.append(KeyProblem(one.entry.key, why, "Delete the wrong one."))
    return wrong


def moves(found: KeysFound) -> list[KeyMove]:
    """Return the moves that copy each host's latest report to the new layout.

    Hosts keep reporting meanwhile, in either layout. A report of the same version is not copied, because its time may change at any
    moment.
    """
    new = _by_host(_new(found))
    made = []
    for host, reports in _by_host(_old(found)).items():
        latest, there = reports[-1], new.get(host, [])
        same = [one for one in there if one.version == latest.version]
        new_index = max((one.entry.modify_index for one in there), default=0)
        if not same and is_outdated(latest.entry.modify_index, new_index, record_index(found, host)):
            continue
        # The copy would be newer than the record, so that the host would count as one that runs the version.
        if not same and has_left_version(found, host, latest.entry.modify_index):
            continue
        if same:
            stale = [one for one in there if one is not same[0] and one.age[:2] < same[0].age[:2]]
            made += [_removal("outdated reports removed", one.entry) for one in stale]
        elif not there or there[-1].age[:2] < latest.age[:2]:
            # Outdated reports are removed in a later round, because a transaction may not have room for all.
            target = found.keys.report(latest.version, host)
            operations, change = (compare_and_put(target, latest.text, 0),), Change(target, None, latest.text)
            made.append(KeyMove("reports copied", f"{latest.entry.key} to {target}", operations, (change,)))
    return made


def removals(found: KeysFound) -> list[KeyMove]:
    """Return the moves that remove the legacy reports and their folders."""
    return [_removal("legacy reports removed", entry) for entry in found.below(LegacyKeys(found.keys.prefix).reports)]


def _removal(what: str, entry: KVEntry) -> KeyMove:
    change = Change(entry.key, text_of(entry.value) or "", None)
    return KeyMove(what, entry.key, (compare(entry.key, entry.modify_index), remove(entry.key)), (change,))


def waiting(found: KeysFound) -> list[str]:
    """Return the hosts that last reported through old code: their record is missing, or older than their legacy report."""
    return [
        host
        for host, reports in _by_host(_old(found)).items()
        if record_index(found, host) <= reports[-1].entry.modify_index
    ]


def _old(found: KeysFound) -> list[tuple[str, _Report]]:
    old = LegacyKeys(found.keys.prefix)
    return [
        (parts[1], _Report(parts[0], entry, _time(entry.value)))
        for entry in found.below(old.reports)
        if (parts := old.report_of(entry.key)) is not None
    ]


def _new(found: KeysFound) -> list[tuple[str, _Report]]:
    folder = found.keys.reports
    return [
        (host, _Report(version, entry, _time(entry.value)))
        for entry in found.below(folder)
        for version, _slash, host in [entry.key[len(folder) :].partition("/")]
        if version and host and "/" not in host
    ]


def _by_host(reports: Sequence[tuple[str, _Report]]) -> Mapping[str, list[_Report]]:
    """Return host -> its reports, the latest last; hosts in natural order."""
    grouped: dict[str, list[_Report]] = defaultdict(list)
    for host, report in reports:
        grouped[host].append(report)
    return {host: sorted(grouped[host], key=lambda one: one.age) for host in in_order(grouped)}


def _time(value: bytes) -> float | None:
    try:
        at = float(value)
    except ValueError:
        return None
    return at if abs(at) < 1e12 else None


def _sanitized(value: bytes) -> str:
    text = text_of(value)
    return "bytes that are not UTF-8 text" if text is None else truncated_repr(text)
