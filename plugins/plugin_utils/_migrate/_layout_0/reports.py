# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What hosts say they run: ``running_version/<version>/<host>`` and where that goes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ....module_utils._common.errors import UpgradeError
from ....module_utils._common.names import check_name, check_version, in_order
from ....module_utils._common.sanitize import truncated_repr
from ....module_utils._consul.client import KVEntry
from ....module_utils._consul.operations import Change, compare, compare_and_put, remove
from ....module_utils._fleet.fleet import is_outdated
from ....module_utils._state.codec import text_of
from ....module_utils._state.legacy_keys import LegacyKeys
from ..active_hosts import record_index
from ..step import KeyMove, KeyProblem, KeysFound


@dataclass(frozen=True, slots=True)
class _Report:
    """A report at either place.

    :param at: when it was made (unix seconds), None where that can't be read.
    """

    version: str
    entry: KVEntry
    at: float | None

    @property
    def age(self) -> tuple[bool, float, int]:
        """Return what sorts the latest word last; of equal times Consul's order tells."""
        return self.at is not None, self.at or 0.0, self.entry.modify_index

    @property
    def text(self) -> str:
        return text_of(self.entry.value) or ""


def report_problems(found: KeysFound) -> list[KeyProblem]:
    """Return the old reports that can't be read or placed, and the hosts that stand at two versions."""
    old = LegacyKeys(found.keys.prefix)
    wrong = []
    for entry in found.below(old.reports):
        if entry.key.endswith("/"):
            continue
        parts = old.report_of(entry.key)
        if parts is None or "\ufffd" in entry.key:
            why = f"is not {old.report('<version>', '<host>')}, so no one knows where it belongs"
            wrong.append(KeyProblem(entry.key, why, "Delete it, or move it out of this folder."))
            continue
        try:
            check_version(parts[0], "version")
            check_name("host", parts[1], "host")
        except UpgradeError as error:
            wrong.append(KeyProblem(entry.key, f"can't be named so any more ({error.message})", "Delete it."))
            continue
        if _time(entry.value) is None:
            mend = f"Delete it, and let {parts[1]} report again, or write a unix time."
            wrong.append(KeyProblem(entry.key, f"holds {_shown(entry.value)}, which is no unix time", mend))
    return [*wrong, *_at_two_versions(found)]


def _at_two_versions(found: KeysFound) -> list[KeyProblem]:
    new, wrong = _by_host(_new(found)), []
    for host, reports in _by_host(_old(found)).items():
        latest = reports[-1]
        # While it goes on, a host may be between writing its new report and removing the former one.
        rivals = [one for one in reports[:-1] if not found.begun or one.at == latest.at]
        if not found.begun:
            rivals += [one for one in new.get(host, []) if one.version != latest.version and one.at == latest.at]
        for one in rivals:
            why = f"says that {host} runs {one.version}, and {latest.entry.key} says {latest.version}"
            if one.at != latest.at:
                why += ", which is the later word"
            wrong.append(KeyProblem(one.entry.key, why, "Delete the one of the two that is not so."))
    return wrong


def moves(found: KeysFound) -> list[KeyMove]:
    """Return what brings each host's latest word from the old place to the new one.

    Hosts go on reporting meanwhile, at either place. Where they stand at the same version, nothing is to be done, whatever
    the time is: it would be another one before it is written.
    """
    new = _by_host(_new(found))
    made = []
    for host, reports in _by_host(_old(found)).items():
        latest, there = reports[-1], new.get(host, [])
        same = [one for one in there if one.version == latest.version]
        said_after = max((one.entry.modify_index for one in there), default=0)
        if not same and is_outdated(latest.entry.modify_index, said_after, record_index(found, host)):
            continue
        if same:
            stale = [one for one in there if one is not same[0] and one.age[:2] < same[0].age[:2]]
            made += [_removal("reports of the past removed", one.entry) for one in stale]
        elif not there or there[-1].age[:2] < latest.age[:2]:
            # Those of the past are removed when it is there: together they could be more than a transaction takes.
            target = found.keys.report(latest.version, host)
            operations, change = (compare_and_put(target, latest.text, 0),), Change(target, None, latest.text)
            made.append(KeyMove("reports copied", f"{latest.entry.key} to {target}", operations, (change,)))
    return made


def removals(found: KeysFound) -> list[KeyMove]:
    """Return what removes the old reports, and the folders that they were in."""
    return [_removal("old reports removed", entry) for entry in found.below(LegacyKeys(found.keys.prefix).reports)]


def _removal(what: str, entry: KVEntry) -> KeyMove:
    change = Change(entry.key, text_of(entry.value) or "", None)
    return KeyMove(what, entry.key, (compare(entry.key, entry.modify_index), remove(entry.key)), (change,))


def waiting(found: KeysFound) -> list[str]:
    """Return the hosts whose last word came through old code: their record is older than their old report, or not there."""
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


def _shown(value: bytes) -> str:
    text = text_of(value)
    return "bytes that are not UTF-8 text" if text is None else truncated_repr(text)
