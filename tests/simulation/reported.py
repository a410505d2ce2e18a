# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The rollout report at the end of a simulated night: every failure and every retry is in it, and nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fire.facts import HISTORY, RECORDS, data_of
from fire.fleet import FLEET
from fire.replay import Step


def mistakes_of_report(
    report: Mapping[str, Any], steps: Sequence[Step], version: str, *, steady: bool
) -> Iterator[str]:
    """Yield what a report on a complete rollout says that was not so.

    :param steps: all of the night, none of which is a restore.
    :param version: the target of the rollout.
    :param steady: whether all clocks were right. Otherwise the phases of hosts are not in the order of their times.
    """
    if report["version"] != version or report["state"] not in ("complete", "converge"):
        yield f"the report is of the rollout to {report['version']}, which is {report['state']}"
        return
    hosts = {one["host"]: one for one in report["hosts"]}
    if set(hosts) != set(FLEET):
        yield f"the report is of the hosts {sorted(hosts)}"
        return
    failures, retries = _failures(steps, version), _retries(steps)
    for host, one in hosts.items():
        if steady and one["phase"] != "upgraded":
            yield f"the report says that {host} is {one['phase']}"
        failed, retried = sum(each["total"] for each in one["failures"]), len(one["retries"])
        if failed != failures[host]:
            yield f"the report says that {host} failed {failed} times, and it did {failures[host]} times"
        if retried != retries[host]:
            yield f"the report says that {host} was retried {retried} times, and it was {retries[host]} times"


def _failures(steps: Sequence[Step], version: str) -> Counter[str]:
    """Return how often each host failed since it was last on its way to another version."""
    found: Counter[str] = Counter()
    # What the record was before its last write: a start that was not admitted is taken back.
    earlier: dict[str, str] = {}
    for step in steps:
        for key, (before, after) in step.changed().items():
            if not key.startswith(RECORDS) or after is None:
                continue
            host, record = key[len(RECORDS) :], data_of(after)
            if record["version"] != version:
                found[host] = 0
            elif record["state"] == "failed" and earlier.get(host) != after.value:
                found[host] += 1
            earlier[host] = before.value if before is not None else ""
    return found


def _retries(steps: Sequence[Step]) -> Counter[str]:
    """Return how often each host was retried since the rollout began."""
    found: Counter[str] = Counter()
    for step in steps:
        for key, (_before, after) in step.changed().items():
            if key.startswith(HISTORY) and after is not None:
                event = data_of(after)
                if event["what"] == "begin":
                    found.clear()
                elif event["what"] == "retry":
                    found.update(event["hosts"].keys())
    return found
