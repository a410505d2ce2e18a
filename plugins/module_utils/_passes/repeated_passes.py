# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Many planner passes in one process, which keeps the fleet in memory: one after each change, and one when the clock changes something."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from .._cache.cached_store import CachedStore, FleetCache
from .._common import runtime
from .._consul.settings import Settings
from .._consul.watch import BlockingQueries, Watch
from .._rollout.opened_gates import MOST_SLOW
from .._rollout.pass_request import PassRequest
from .._state.legacy_keys import LegacyKeys
from .planner_pass import PassResult, make_pass
from .post_upgrade_pass import make_post_upgrade_pass

# A report changes several folders, and often several hosts report at once. One pass covers what changes within this time (seconds).
_GATHER = 0.004
# After a report, further ones are noticed at the latest after this time (seconds).
_GATHER_REPORTS = 0.05
# The same for changes that make no slot free: a planner's own writes, starts of hosts, and commands of operators.
_GATHER_OTHERS = 0.25
# After a pass, the next one comes at the earliest after so many times its duration, but within so many seconds. So reports that follow each
# other closely share a pass, and a report after a rest is not delayed.
_REST, _LONGEST_REST = 10, 0.1
# A plan may change at a time by the clock. The pass comes this much later (seconds).
_MARGIN = 0.5


class RepeatedPasses:
    """Makes the passes of one rollout.

    :param latest: the result of the last pass that succeeded; None before the first one.
    :param failed: what the last pass for the upgrade itself had done when it failed; None if it succeeded.
    """

    def __init__(
        self,
        settings: Settings,
        cache: FleetCache | None = None,
        queries: BlockingQueries | None = None,
        *,
        handover: int = 0,
    ) -> None:
        """Create a store with the cache.

        :param cache: that of this process; None for one of its own.
        :param queries: the blocking queries of this process; None for queries of its own.
        :param handover: the ModifyIndex of the handover that all passes are made under; 0 for none.
        """
        self._handover = handover
        self.store = CachedStore(settings, cache)
        self.latest: PassResult | None = None
        self.failed: PassResult | None = None
        # The last one for the upgrade itself.
        self._latest_of_upgrade: PassResult | None = None
        keys = self.store.keys
        # What a host writes at the end of its upgrade, and what else may free or take a slot.
        reports = (keys.reports, LegacyKeys(keys.prefix).reports, keys.current_version)
        others = (keys.upgrade, keys.gates)
        pauses = dict.fromkeys(reports, _GATHER_REPORTS) | dict.fromkeys(others, _GATHER_OTHERS)
        self._own = BlockingQueries(settings, pauses=pauses) if queries is None else None
        self._reports = Watch(settings, reports, queries or self._own)
        self._all = Watch(settings, (*reports, *others), queries or self._own)
        self._position = self._position_of_reports = 0
        self._rest_until = self._read_at = 0.0
        self._request = PassRequest()

    def close(self) -> None:
        """Stop watching Consul."""
        if self._own is not None:
            self._own.close()

    def first(self, request: PassRequest, *, most_slow: int = MOST_SLOW) -> PassResult:
        """Make the first pass.

        :param request: whose rules, order and commands apply to this pass only, because the ledger has them then.
        :param most_slow: as for :func:`make_pass`.
        :raises HandoverChanged: if the handover was replaced or ended.
        :raises UpgradeError: what :func:`make_pass` raises.
        """
        found = self._make(request, most_slow)
        self._request = PassRequest(
            version=found.plan.version,
            fleet=request.fleet,
            role_pattern=request.role_pattern,
            limit=request.limit,
            converge=request.converge,
            post_upgrade=request.post_upgrade,
            keeps_members=request.keeps_members,
        )
        return found

    def wait(self, seconds: float) -> bool:
        """Wait until something may have changed; return whether it has within ``seconds``.

        What woke a pass that failed is in no plan, so the next one is due at once.
        """
        if self.failed is not None:
            return True
        seconds = min(seconds, max(0.0, self._time_left()) + _MARGIN)
        has_changed = self._all.wait(self._position, seconds)
        if has_changed:
            self._reports.wait(self._position_of_reports, _GATHER_OTHERS)
            runtime.sleep(max(_GATHER, self._rest_until - runtime.monotonic()))
        return has_changed or self._time_left() <= 0

    def _time_left(self) -> float:
        """Return after how many seconds the plan may change without a write; infinity for never."""
        if self.latest is None:
            return math.inf
        return runtime.seconds_until(self.latest.plan.wake_at, self.latest.snapshot.now, self._read_at)

    def next(self, *, most_slow: int = MOST_SLOW) -> PassResult:
        """Make one more pass. It never begins a rollout.

        :raises UpgradeError: what :func:`make_pass` raises.
        """
        ledger = self.latest.ledger if self.latest is not None else None
        request = replace(self._request, since=1)
        if ledger is not None:
            request = replace(request, epoch=ledger.epoch, commit=ledger.commit, began=ledger.since)
        return self._make(request, most_slow)

    def post_upgrade(self, request: PassRequest, roles: Collection[str]) -> PassResult:
        """Make a pass for the post-upgrade tasks of a complete rollout.

        :param roles: as for :func:`make_post_upgrade_pass`.
        :raises HandoverChanged: if the handover was replaced or ended.
        :raises UpgradeError: what :func:`make_post_upgrade_pass` raises.
        """
        self.failed = None
        return self._timed(lambda: make_post_upgrade_pass(self.store, request, roles, handover=self._handover))

    def _make(self, request: PassRequest, most_slow: int) -> PassResult:
        before = self._latest_of_upgrade
        self.failed = outcome = PassResult()
        self._latest_of_upgrade = self._timed(
            lambda: make_pass(
                self.store, request, most_slow=most_slow, before=before, handover=self._handover, outcome=outcome
            )
        )
        self.failed = None
        return self._latest_of_upgrade

    def _timed(self, act: Callable[[], PassResult]) -> PassResult:
        began = self._read_at = runtime.monotonic()
        self._position, self._position_of_reports = self._all.mark(), self._reports.mark()
        self.latest = act()
        ended = runtime.monotonic()
        self._rest_until = ended + min(_LONGEST_REST, _REST * (ended - began))
        return self.latest
