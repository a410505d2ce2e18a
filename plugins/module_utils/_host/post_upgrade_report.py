# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Report that the post-upgrade tasks of a host failed."""

from __future__ import annotations

from dataclasses import replace

from .._codecs.record import decode_record, encode_record
from .._common import runtime
from .._consul.operations import compare_and_put
from .._consul.retry import retry_on_conflict
from .._fleet.fleet import POST_FAILED, TASKS_FAILED, HostRecord
from .._state.store import Store
from .host_report import truncate_error


def failed_post_upgrade(record: HostRecord, error: str | None, now: int) -> HostRecord:
    """Return the record of a host whose post-upgrade tasks have failed. It stays upgraded.

    :param now: unix seconds.
    """
    return replace(record, post=POST_FAILED, error=error, times={**record.times, TASKS_FAILED: now}, next_step=None)


def report_post_upgrade_failure(store: Store, host: str, version: str, error: str) -> None:
    """Write that a host could not begin the post-upgrade tasks of a version, unless planners have not admitted it to them.

    :raises UpgradeError: ``busy``, or what :meth:`ConsulClient.get` and :meth:`ConsulClient.settle` raise.
    """
    key, now = store.keys.record(host), int(runtime.now())

    def report() -> None:
        entry = store.client.get(key)
        before = decode_record(key, entry.value) if entry is not None else None
        if entry is not None and before is not None and before.may_run_post_upgrade(version):
            after = encode_record(failed_post_upgrade(before, truncate_error(error), now))
            store.client.settle([compare_and_put(key, after, entry.modify_index)])

    retry_on_conflict(report, lambda: key)
