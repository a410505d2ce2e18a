# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the hosts of a simulated night really run, which is in no key: it is compared with their reports, and with the end of the rollout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from fire.facts import HISTORY, LEDGER, REPORTS, data_of
from fire.fleet import FLEET, OLD
from fire.replay import Step


class RealVersions:
    """The versions that hosts really run.

    :param tasks: a push host runs a version once so many of its tasks have run.
    """

    def __init__(self, tasks: int) -> None:
        self.runs = dict.fromkeys(FLEET, OLD)
        self._tasks = tasks
        self._ran: Counter[tuple[str, str]] = Counter()

    def ran_tasks(self, host: str, version: str) -> None:
        """Note that the tasks of one task group have run on a push host."""
        self._ran[host, version] += 1
        if self._ran[host, version] >= self._tasks:
            self.runs[host] = version

    def mistakes(self, step: Step, hosts: Mapping[str, str]) -> Iterator[str]:
        """Yield which hosts report what they do not run, and which do not run the version of a rollout that is complete.

        :param hosts: those that never lie.
        """
        changed = step.changed()
        for key, (_before, after) in changed.items():
            if key.startswith(REPORTS) and after is not None:
                version, host = key[len(REPORTS) :].split("/")
                if host in hosts and self.runs[host] != version:
                    yield f"{host} reports {version}, and runs {self.runs[host]}"
            elif key.startswith(HISTORY) and after is not None and data_of(after)["what"] in ("complete", "converge"):
                version = data_of(step.after[LEDGER])["version"]
                others = [host for host in hosts if self.runs[host] != version]
                if others:
                    yield f"the rollout to {version} is complete, and {', '.join(others)} do not run it"
