# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of a fleet as the live page and its JSON have it, in the words of the modules' results."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...module_utils._common.names import is_job, job_id
from ...module_utils._common.sanitize import as_yaml, sanitize, truncate_middle
from ...module_utils._fleet.fleet import FAILED as REPORTED_FAILED
from ...module_utils._fleet.fleet import REPORTED_LOST
from ...module_utils._host_states.state_names import BROKEN, PENDING, state_text
from ...module_utils._observe.summary import fleet_summary
from ...module_utils._planner.plan import HostView
from ...module_utils._queries.follow import ProgressUpdate
from ...module_utils._queries.info_result import info_result
from ...module_utils._queries.job_details import JobDetails
from ...module_utils._queries.rollout_history import RolloutHistory, summary
from .._observe.view_updates import sanitized_progress

# The version of the JSON. schemas/page.json describes it.
FORMAT = 1
# So much of the arguments of a job is shown (characters).
_MOST_ARGUMENTS = 2000
# More are only counted.
_MOST_FAILURES, _MOST_ENTRIES = 50, 50
# Parts of the result of consul_upgrade_info that depend on a host or on a request.
_NOT_HERE = ("changed", "hosts", "ledger", "history", "blockers", "index")
# Text that needs no quotes in -e name=value.
_PLAIN = re.compile(r"[A-Za-z0-9._,:@%+-]+")


def live_state(read: ProgressUpdate, history: RolloutHistory, details: JobDetails) -> dict[str, Any]:
    """Return the state of a fleet as plain data. Takes time linear in hosts.

    :param history, details: those of the same read.
    """
    view, progress = read.view, sanitized_progress(read.progress)
    ledger = view.snapshot.ledger
    info = {name: value for name, value in info_result(view).items() if name not in _NOT_HERE}
    # Hosts that run their post-upgrade tasks count as upgrading, as in the live view.
    info |= fleet_summary(read.hosts)
    current = summary(history.current) if ledger is not None else None
    broken = [host for host, one in read.hosts.items() if one.state in BROKEN]
    return {
        "format": FORMAT,
        "at": int(view.snapshot.now),
        "error": "",
        "over": progress.over,
        "warnings": [*read.warnings],
        "rollout": {
            **info,
            "state": progress.state,
            "since": ledger.since if ledger is not None else 0,
            "who": (current.by if current is not None else "") or (ledger.who if ledger is not None else ""),
            "reason": _reason(history),
            "rollback": ledger.rollback if ledger is not None else False,
            "job": _job(read, details) if is_job(progress.version) else None,
            "instructions": dict(ledger.instructions) if ledger is not None else {},
            "seconds_left": None if progress.left is None else int(progress.left),
            "moving": [asdict(one) for one in progress.flights],
            "more_moving": progress.more,
            "failures": [_failure(host, read.hosts[host], read) for host in broken[:_MOST_FAILURES]],
            "more_failures": max(0, len(broken) - _MOST_FAILURES),
            "history": [_entry(event) for event in reversed(history.current[-_MOST_ENTRIES:])],
            "more_history": max(0, len(history.current) - _MOST_ENTRIES),
        },
        "rollouts": [one.plain() for one in history.former],
    }


def _job(read: ProgressUpdate, details: JobDetails) -> dict[str, Any]:
    """Return what a job runs, and the numbers of its hosts as the live view has them."""
    progress, ledger, job = read.progress, read.view.snapshot.ledger, details.job
    args = sanitize(json.dumps(job.args, ensure_ascii=False, sort_keys=True)) if job is not None else ""
    return {
        "id": job_id(progress.version),
        "command": job.command if job is not None else "",
        "args": truncate_middle(args, _MOST_ARGUMENTS),
        "by_ansible": ledger.by_ansible if ledger is not None else False,
        "expires": ledger.expires if ledger is not None else 0,
        "done": sum(row.done for row in progress.bars),
        "running": sum(row.upgrading for row in progress.bars),
        "failed": sum(row.failed for row in progress.bars),
        "waiting": sum(row.waiting for row in progress.bars),
    }


def _reason(history: RolloutHistory) -> str:
    return str(history.current[0].get("reason") or "") if history.current else ""


def _failure(host: str, view: HostView, read: ProgressUpdate) -> dict[str, Any]:
    record = read.view.snapshot.records.get(host)
    known = record if record is not None and record.readable and record.version == read.progress.version else None
    return {
        "host": host,
        "role": view.role,
        "state": view.state,
        "service": (known.service if known is not None else None) or "",
        "step": (known.step if known is not None else None) or "",
        "attempt": known.attempt if known is not None else 0,
        "at": known.times.get(REPORTED_LOST if known.state == REPORTED_LOST else REPORTED_FAILED, 0)
        if known is not None
        else 0,
        "error": (known.error if known is not None else None) or view.reason,
    }


def _entry(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an entry of the history without the rules, which the rollout has, and with at most eight hosts."""
    hosts, roles = event.get("hosts") or {}, event.get("roles") or {}
    reasons = [*dict.fromkeys(hosts.values())] if event["what"] != "publish" else []
    return {
        "epoch": event["epoch"],
        "at": event["at"],
        "what": event["what"],
        "who": str(event.get("by") or event.get("who") or ""),
        "stage": str(event.get("stage") or ""),
        "hosts": [*hosts][:8],
        "count": len(hosts),
        "roles": [*roles],
        "reason": str(event.get("reason") or (reasons[0] if len(reasons) == 1 else "")),
    }


def only_time_differs(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two states of a fleet are the same but for the time of their reads, and what follows from it."""

    def without_time(state: Mapping[str, Any]) -> str:
        rollout = {**(state.get("rollout") or {}), "seconds_left": None}
        return json.dumps({**state, "at": 0, "rollout": rollout}, sort_keys=True)

    return without_time(one) == without_time(other)


def command(playbook: str, variables: Mapping[str, str]) -> str:
    """Return the command of a playbook of the collection, for an operator to paste."""
    if all(_PLAIN.fullmatch(value) for value in variables.values()):
        options = [f"-e {name}={value}" for name, value in variables.items()]
    else:
        options = [f"-e {shlex.quote(as_yaml(variables))}"]
    return " ".join([f"ansible-playbook convoy.upgrade.{playbook} -i inventory.yml", *options])


def bars_of(rollout: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of the bar of each role, in percent: upgraded, upgrading, broken, held, pending."""
    kinds = (("d", ("upgraded",)), ("k", ("upgrading",)), ("pf", (*BROKEN,)), ("h", ("held",)), ("w", (PENDING,)))
    found, of_job = [], is_job(rollout["version"])
    for role, one in rollout["roles"].items():
        x, pieces = 0.0, []
        for kind, states in kinds:
            count = sum(one["states"][state] for state in states)
            width = 100 * count / max(1, one["hosts"])
            if count:
                pieces.append((kind, x, width))
            x += width
        texts = [f"{count} {state_text(state, of_job=of_job)}" for state, count in one["states"].items() if count]
        found.append({"role": role, "pieces": pieces, "text": ", ".join(texts), **one})
    return found
