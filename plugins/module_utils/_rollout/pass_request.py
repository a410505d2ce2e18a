# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a caller asks of a planner pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .._codecs.job import Job
from .._common.names import is_job
from .._fleet.ledger import Ledger


@dataclass(frozen=True, slots=True)
class PassRequest:
    """What a caller asks of a pass.

    :param version: None to continue the rollout of the ledger.
    :param rules: instructions in their stored form, and keys that are empty on purpose; None for those of the ledger.
    :param rules_with_default: those rules with the ones of the default file, for a request that begins a rollout or has rules. None for ``rules``.
    :param role_order: order added to the rules.
    :param fleet: host -> role; None if the caller has no fleet.
    :param role_pattern: gives hosts outside of the fleet their roles; None for that of the ledger.
    :param limit: hosts, roles or groups that may be admitted; None for all hosts.
    :param converge: whether to open the global gate and remove the others once the rollout is complete.
    :param since: set by a caller that continues its own rollout; such a pass never begins one.
    :param epoch: the newest epoch that the caller has read; a ledger with an older one is refused.
    :param commit: the commit of that epoch; an epoch with another commit is refused too. Empty if the caller does not have it.
    :param began: when the caller's rollout began (unix seconds); a ledger of another rollout is refused. None if the caller does not know.
    :param keeps_members: whether the ledger's numbers of hosts stay, because the caller's fleet may be older than that of the run that began
        the rollout. With fewer hosts than the ledger has, no host is admitted.
    :param restart: whether to begin an aborted rollout again.
    :param replace: target version of a rollout under way that this one may replace; None to replace none.
    :param rolls_back: the rollout that this one rolls back. If another one is the current one by then, the request is refused.
    :param post_upgrade: roles that have post-upgrade tasks; None if the caller does not know.
    :param services: role -> the ID of the tasks of services that its hosts must have; None if the caller does not know.
    :param by: who begins a rollout; empty for the user of this process.
    :param job: the job to begin; None to begin none. ``version`` is its target then.
    :param command: the rollback command: ``by``, ``at`` (unix seconds) and ``reason``, for the ledger and the history.
    """

    version: str | None = None
    rules: Mapping[str, Any] | None = None
    rules_with_default: Mapping[str, Any] | None = None
    role_order: Mapping[str, Any] | None = None
    fleet: Mapping[str, str] | None = None
    role_pattern: str | None = None
    limit: Sequence[str] | None = None
    converge: bool = False
    since: int | None = None
    epoch: int = 0
    commit: str = ""
    began: int | None = None
    keeps_members: bool = False
    restart: bool = False
    replace: str | None = None
    rolls_back: Ledger | None = None
    command: Mapping[str, Any] = field(default_factory=dict)
    post_upgrade: Sequence[str] | None = None
    services: Mapping[str, str] | None = None
    by: str = ""
    job: Job | None = None

    @property
    def is_job(self) -> bool | None:
        """Whether it is for a job, and not for a rollout to a version; None if the ledger decides."""
        return None if self.version is None else is_job(self.version)

    def given_rules(self, same: Ledger | None) -> Mapping[str, Any] | None:
        """Return the rules of the request. Those of the default file belong to them if it has rules of its own, or begins a rollout.

        :param same: the rollout that it continues; None if it begins one.
        """
        has_file = self.rolls_back is None and self.rules_with_default is not None
        return self.rules_with_default if has_file and (same is None or self.rules is not None) else self.rules
