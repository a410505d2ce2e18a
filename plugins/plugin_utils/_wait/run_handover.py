# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The handover of a run's rollout to planner services, which carry it beside the run if all its hosts upgrade themselves."""

from __future__ import annotations

from collections.abc import Sequence

from ...module_utils._consul.settings import Settings
from ...module_utils._passes.planner_pass import PassResult
from ...module_utils._rollout.handover import HandedOver, hand_over_while_waiting, handed_over, take_back
from ...module_utils._state.store_pool import StorePool


class RunHandover:
    """Ends the handover of a rollout that needs Ansible, and hands all others over."""

    def __init__(
        self,
        settings: Settings,
        limit: Sequence[str] | None,
        excluded: Sequence[str],
        *,
        is_job: bool,
        needs_ansible: bool,
    ) -> None:
        """End a handover to planner services if they would admit hosts that only Ansible can upgrade.

        :param limit: host patterns of what they may admit; None for all hosts.
        :param excluded: host patterns that exclude what they may not admit in either case.
        :param is_job: whether the rollout is a job.
        :param needs_ansible: whether Ansible upgrades hosts of the fleet, or runs the tasks of a job.
        :raises UpgradeError: what :func:`take_back` raises.
        """
        self._limit, self._excluded, self._needs_ansible = limit, excluded, needs_ansible
        self._pool = StorePool(settings, is_job=is_job)
        self._is_given = False
        self._warning = ""
        self.current = HandedOver()
        if needs_ansible:
            with self._pool.store() as store:
                take_back(store)
            self._pool.close()

    def note_pass(self, outcome: PassResult) -> None:
        """Hand the rollout over after the first pass whose hosts are not all upgraded. Before it, the ledger may lack what services need."""
        if self._needs_ansible or outcome.ledger is None:
            return
        if self._is_given:
            self.current = handed_over(outcome.snapshot, outcome.ledger)
            return
        self._is_given = True
        with self._pool.store() as store:
            self.current = hand_over_while_waiting(store, outcome.ledger, self._limit, self._excluded)
        self._pool.close()
        self._warning = self.current.warning

    def take_warning(self) -> str:
        """Return what an operator has to know of the handover, once; empty for nothing."""
        found, self._warning = self._warning, ""
        return found
