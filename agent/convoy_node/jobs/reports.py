# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a node writes to Consul about its jobs: its record of the current one, and the output of the last ones. No IO."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Optional

from ..machine.errors import sanitize
from ..node.gate import NodeKeys
from .spool import DONE, STARTED, JobEntry

# An operator lets the host try again.
RETRIED = "retried"
_MOST_OUTPUTS = 3
_MOST_ERROR = 600
_LINES = 5
# As JSON; planners write less.
_MOST_FAILURES = 2000


def parse_record(value: Optional[bytes]) -> dict[str, Any]:
    """Return a host's record of its last job; empty if there is none or it can't be read."""
    try:
        data = json.loads(value) if value is not None else {}
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def is_over(record: Mapping[str, Any], identifier: str) -> bool:
    """Return whether a record says that the host has ended a job, however it ended."""
    return record.get("job") == identifier and record.get("state") not in (STARTED, RETRIED)


def is_started(record: Mapping[str, Any], identifier: str) -> bool:
    """Return whether a host's record is the start of a job, without its end."""
    return record.get("job") == identifier and record.get("state") == STARTED


def next_record(before: Mapping[str, Any], entry: JobEntry, facts: Mapping[str, str]) -> bytes:
    """Return a host's record after a job has started or ended.

    :param facts: ``role``, ``machine`` and ``release`` of the node.
    """
    same = before.get("job") == entry.id
    times = dict(before.get("times") or {}) if same and isinstance(before.get("times"), dict) else {}
    times[entry.state] = entry.ended or entry.at
    record = {
        "job": entry.id,
        "command": entry.command,
        "state": entry.state,
        "run": entry.run,
        "attempt": entry.attempt,
        "times": times,
        **{name: value for name, value in facts.items() if value},
    }
    # Those that an operator has retried.
    failures = before.get("failures")
    if same and isinstance(failures, list) and len(json.dumps(failures)) <= _MOST_FAILURES:
        record["failures"] = failures
    if entry.exit_status is not None:
        record["exit_status"] = entry.exit_status
    if entry.is_final:
        record["repeatable"] = False
    if entry.error:
        record["error"] = entry.error[:_MOST_ERROR]
    return json.dumps(record, sort_keys=True).encode()


def next_outputs(before: Optional[bytes], entry: JobEntry) -> bytes:
    """Return the output of a host's last jobs with one more, the newest first."""
    try:
        known = json.loads(before) if before is not None else []
    except (ValueError, RecursionError):
        known = []
    others = (
        [one for one in known if isinstance(one, dict) and one.get("run") != entry.run]
        if isinstance(known, list)
        else []
    )
    newest = {
        "job": entry.id,
        "command": entry.command,
        "run": entry.run,
        "state": entry.state,
        "attempt": entry.attempt,
        "exit_status": entry.exit_status,
        "at": entry.ended,
        "seconds": round(entry.seconds, 1),
        "error": entry.error,
        "output": entry.output,
    }
    return json.dumps([newest, *others][:_MOST_OUTPUTS]).encode()


def last_lines(output: str) -> str:
    """Return the last lines of an output as one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return sanitize(" | ".join(lines[-_LINES:])[-_MOST_ERROR // 2 :], _MOST_ERROR // 2)


def start_operations(
    keys: NodeKeys, record: bytes, index: int, found: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], frozenset[str]]:
    """Return the transaction that starts a job only if the host is still admitted at that moment, and the keys that must stay missing.

    A node's token may not compare keys that are missing, so the transaction reads them.

    :param index: the ModifyIndex of the host's record, 0 if there is none.
    :param found: key -> entry, from the read that showed the admission.
    """
    depends = {keys.current_job, keys.holds_folder, *keys.job_gates, *keys.holds, *keys.legacy_gates}
    missing = frozenset(depends - found.keys() - {keys.holds_folder})
    operations: list[dict[str, Any]] = [{"Verb": "cas", "Key": keys.job_record, "Value": record, "Index": index}]
    operations += [
        {"Verb": "check-index", "Key": key, "Index": found[key].index} for key in sorted(depends) if key in found
    ]
    operations += [{"Verb": "get-tree", "Key": key} for key in sorted(missing)]
    return operations, missing


def report_of(entry: JobEntry) -> str:
    """Return how a job ended, as a phrase for the journal."""
    return f"job {entry.id} is {entry.state}" + ("" if entry.state == DONE else f": {entry.error}")
