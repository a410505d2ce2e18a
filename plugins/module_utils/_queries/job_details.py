# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a snapshot lacks of a job, in memory, for a process that shows it again and again: its command, and its last output on each host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .._codecs.job import Job, decode_job, decode_outputs
from .._common.names import is_job, job_id
from .._consul.client import MOST_OPERATIONS, KVEntry
from .._consul.errors import Conflict
from .._fleet.fleet import FAILED, REPORTED_LOST, UPGRADED, HostRecord, Snapshot
from .._state.store import Store

# So much of an output is kept, and the rest is only counted: of its beginning, and of its end (characters).
_FIRST, _LAST = 500, 1500
_ENDS = (UPGRADED, FAILED, REPORTED_LOST)


class JobDetails:
    """The job of a snapshot, and how it ended on its hosts.

    A host writes its output together with its record, so only outputs whose record has changed are read again.

    :ivar job: the job; None without one, or if it can't be read.
    :ivar outputs: host -> the output of the job when it ended there last, as :func:`decode_outputs` returns it, with ``left_out``: the number of
        characters that are left out of its middle.
    :param store: where they are read.
    """

    def __init__(self, store: Store) -> None:
        """Keep the store."""
        self._store = store
        self._target = ""
        # Host -> the index of the record at whose time the output was read.
        self._read: dict[str, int] = {}
        self._is_job_read = False
        self.job: Job | None = None
        self.outputs: dict[str, Mapping[str, Any]] = {}

    def refresh(self, snapshot: Snapshot) -> None:
        """Read what is new. One request for each 64 hosts on which the job has ended since the last call; none if there are none.

        :raises UpgradeError: what :meth:`ConsulClient.read` raises; ``denied`` if the token may not read some of them, after all others were read.
        """
        target = (snapshot.current_version or "") if snapshot.is_job else ""
        if target != self._target:
            self._target, self._read, self._is_job_read, self.job, self.outputs = target, {}, False, None, {}
        if not is_job(target):
            return
        ended = {host: one.index for host, one in snapshot.records.items() if _has_ended(one, target)}
        self.outputs = {host: one for host, one in self.outputs.items() if host in ended}
        changed = {self._store.keys.job_output(host): host for host in ended if self._read.get(host) != ended[host]}
        key_of_job = self._store.keys.job(job_id(target))
        keys = [*([] if self._is_job_read else [key_of_job]), *changed]
        hidden: list[str] = []
        for at in range(0, len(keys), MOST_OPERATIONS):
            chunk = keys[at : at + MOST_OPERATIONS]
            entries, gone = self._entries(chunk)
            for key in chunk:
                if key not in entries and key not in gone:
                    hidden.append(key)
                elif key == key_of_job:
                    self._is_job_read = True
                    self.job = decode_job(entries[key].value) if key in entries else None
                else:
                    self._put(changed[key], entries.get(key))
                    self._read[changed[key]] = ended[changed[key]]
        if hidden:
            # Unlike the read of several keys, this says what is wrong with the token.
            self._store.client.get(hidden[0])

    def _entries(self, keys: Sequence[str]) -> tuple[dict[str, KVEntry], set[str]]:
        """Return the entries that exist and that the token may read, and the keys that do not exist.

        One request, and more only if some keys do not exist.
        """
        gone: set[str] = set()
        while left := [key for key in keys if key not in gone]:
            try:
                return {entry.key: entry for entry in self._store.client.read_visible(left)}, gone
            except Conflict as error:
                found = gone.union(error.details.get("keys", ()))
                if found == gone:
                    raise
                gone = found
        return {}, gone

    def _put(self, host: str, entry: KVEntry | None) -> None:
        self.outputs.pop(host, None)
        found = decode_outputs(entry.value, job_id(self._target)) if entry is not None else []
        if found:
            self.outputs[host] = _shortened(found[0])


def _has_ended(record: HostRecord, target: str) -> bool:
    """Return whether a job has ended on a host, also if the host runs it again now."""
    return record.readable and record.version == target and any(state in record.times for state in _ENDS)


def _shortened(output: Mapping[str, Any]) -> dict[str, Any]:
    text = str(output["output"])
    left_out = max(0, len(text) - _FIRST - _LAST)
    return {
        **output,
        "output": f"{text[:_FIRST]}\n...\n{text[-_LAST:]}" if left_out else text,
        "left_out": left_out,
    }
