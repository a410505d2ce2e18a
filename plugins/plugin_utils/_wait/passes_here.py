# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Passes that are made in this process, which keeps the fleet in memory between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._common.errors import UpgradeError
from ...module_utils._consul.operations import as_diff
from ...module_utils._consul.settings import Settings
from ...module_utils._passes.planner_pass import PassRequest, PassResult
from ...module_utils._passes.repeated_passes import RepeatedPasses
from ...module_utils._planner.plan import blocked_hosts, rollout_blockers
from ...module_utils._rollout.handover import HandedOver, handed_over
from ...module_utils._state.store import Store
from .._observe.progress_lines import states_of_pass
from .passes import OF_FIRST, Passes, PassFailed, PatientPasses, WaitedPass


class PassesHere(Passes):
    """Makes passes in this process.

    :param request: returns the request of the first pass.
    :param as_result: returns the module's result for a pass.
    :param hand_over: hands the rollout of the first pass over.
    :param with_diff: whether to keep all changes for diff mode.
    """

    def __init__(
        self,
        settings: Settings,
        request: Callable[[Store], PassRequest],
        as_result: Callable[[PassResult, HandedOver], dict[str, Any]],
        say: Callable[[str], None],
        hand_over: Callable[[Store, PassResult], HandedOver],
        *,
        with_diff: bool = False,
    ) -> None:
        """Keep the arguments."""
        super().__init__()
        self._passes = RepeatedPasses(settings)
        self._request = request
        self._as_result = as_result
        self._patient = PatientPasses(say)
        self._hand_over = hand_over
        self._with_diff = with_diff
        # One of Ansible's workers goes on after its run was killed.
        self._parent = os.getppid()
        self._first: Mapping[str, Any] = {}

    def first(self) -> WaitedPass:
        """Make the first pass."""
        outcome = self._make(lambda: self._passes.first(self._request(self._passes.store), most_slow=1))
        made = self._seen(outcome, self._hand_over(self._passes.store, outcome))
        result = made.result()
        self._first = {name: result[name] for name in OF_FIRST if name in result}
        return made

    def next(self, seconds: float) -> WaitedPass | None:
        """Wait for a change, and make a pass.

        :raises PassFailed: also if the run was killed meanwhile, so that it admits no further host.
        """
        has_changed = self._passes.wait(seconds)
        if os.getppid() != self._parent:
            raise PassFailed(
                {
                    "changed": False,
                    "failed": True,
                    "msg": "This run was killed. Run the same command again to continue.",
                }
            )
        if not has_changed:
            return None
        outcome = self._make(lambda: self._passes.next(most_slow=1))
        return self._seen(outcome, handed_over(outcome.snapshot, outcome.ledger))

    def close(self) -> None:
        """Stop watching Consul."""
        self._passes.close()

    def _make(self, act: Callable[[], PassResult]) -> PassResult:
        def attempt() -> PassResult:
            before = self._passes.failed
            try:
                return act()
            except UpgradeError as error:
                failed = self._passes.failed
                if failed is not None and failed is not before:
                    self._add(failed)
                done = self.total.as_result() if self.total.changed else {"changed": False}
                raise PassFailed({**done, **error.as_result()}) from None

        made: PassResult = self._patient.make(attempt)
        return made

    def _add(self, outcome: PassResult) -> None:
        """Add what a pass has done, also one that failed after that."""
        total = self.total
        total.changed |= bool(outcome.changes)
        total.admit(outcome.transitions())
        if outcome.changes and self._with_diff:
            total.diffs.append(as_diff(outcome.changes))
        total.warnings |= dict.fromkeys(outcome.warnings)

    def _seen(self, outcome: PassResult, handover: HandedOver) -> WaitedPass:
        self._add(outcome)
        plan = outcome.plan
        return WaitedPass(
            done=plan.scope_done,
            can_move=plan.can_move,
            blocker=rollout_blockers(plan)["blocker"],
            blockers=lambda: blocked_hosts(plan, outcome.hosts()),
            wake_at=plan.wake_at or 0,
            states=states_of_pass(outcome),
            result=lambda: {**self._as_result(outcome, handover), **self._first},
            handover=handover,
        )
