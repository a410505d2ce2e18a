# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A rollout as text: the status of the fleet, the history of one host, a composition, mistakes in rules."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...module_utils._common.names import in_order, is_job, job_id, listing, plural, target_text
from ...module_utils._common.sanitize import option
from ...module_utils._fleet.ledger import COMPLETE, RUNNING
from ...module_utils._host_states.state_names import FAILED, HELD, LOST, PENDING, UPGRADED, UPGRADING, state_text
from ...module_utils._observe.operator_needs import POST_UPGRADE
from ...module_utils._planner.blockers import NO_MORE_HOSTS
from ...module_utils._rules.instructions import FORWARD
from .._compose.task_order import REVERSED_TASK_GROUPS
from .._services.steps import REPLACEMENT

_MOST_HOSTS = 8

_COLUMNS = (UPGRADED, UPGRADING, PENDING, HELD, FAILED, LOST)

# What people read for some entries of the history.
_ENTRIES = {
    "open": "admitted to",
    "after": "admitted to post-upgrade tasks of",
    "converge": "gates opened after",
}
# The order of events with the same time, which has seconds.
_FLOW = (
    *(
        "begin",
        "adopt",
        "rules",
        "resume",
        "approve",
        "stage",
        "retry",
        "retried",
        "open",
        "started",
        "failed",
        "upgraded",
    ),
    *("publish", "health", "forget", "hold", "unhold", "pause", "abort", "close", "complete", "converge"),
)


def table_lines(rows: Sequence[Sequence[str]], *, left: Iterable[int] = (0,)) -> list[str]:
    """Return rows as aligned lines. The first row is the head.

    :param left: the columns that are aligned left; others are aligned right.
    """
    lefts = set(left)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in lefts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def status_lines(info: Mapping[str, Any]) -> list[str]:
    """Return the status of the fleet: states and versions by role, and why hosts are not upgraded.

    :param info: a result of ``consul_upgrade_info`` or ``consul_upgrade_plan``.
    """
    return [
        headline(info),
        *rollout_lines(info),
        "",
        *_by_role(info["roles"], of_job=is_job(info["version"])),
        *reason_lines(info["reasons"], of_job=is_job(info["version"])),
        *_of_holds(info.get("holds") or [], info.get("more_holds", 0), of_job=is_job(info["version"])),
        *_of_providers(info.get("providers") or {}),
        *_of_releases(info.get("releases") or {}),
    ]


def rollout_lines(info: Mapping[str, Any]) -> list[str]:
    """Return the lines on the whole rollout: the order of a rollback, the stage, and the blocker."""
    lines = []
    ledger = info.get("ledger") or {}
    if ledger.get("rollback"):
        command = ledger.get("command") or {}
        reason = command.get("reason") if ledger.get("state") in (RUNNING, COMPLETE) else ""
        lines.append("It rolls the fleet back" + (f": {reason}" if reason else ""))
    if info.get("rollback_order"):
        after = [f"{role} after {', '.join(firsts)}" for role, firsts in info["order"].items()]
        stages = ", without stages" if info["rollback_order"] == FORWARD else ""
        lines.append(
            f"Order of the rollback: {info['rollback_order']}{stages}" + (f"; {'; '.join(after)}" if after else "")
        )
    left = info.get("post_upgrade") or ()
    if left:
        # The result may have the first ones alone.
        count = len(left) + info.get("more_post_upgrade", 0)
        names = some_hosts({"hosts": left, "count": count})
        lines.append(f"Post-upgrade tasks have not run on {plural(count, 'host')}: {names}")
    # The tasks may also need the end of a hold, or nothing: a run or planner services may be at work on them.
    needs = [one for one in info.get("needs_operator") or () if one["code"] == POST_UPGRADE == one["playbook"]]
    if needs and info.get("complete"):
        options = " ".join(option(*one) for one in needs[0]["variables"].items())
        lines.append(f"Next: ansible-playbook convoy.upgrade.post_upgrade {options}")
    if info.get("stage"):
        lines.append(f"Stage {info['stage']}" + ("; it waits for approval" if info["needs_approval"] else ""))
    if info.get("blocker"):
        lines.append(f"No host is admitted: {info['blocker']['reason'].removeprefix(NO_MORE_HOSTS)}")
    if info.get("carried_by") and (left or not info.get("complete")):
        lines.append(f"Carried by planner services: {listing(info['carried_by'])}")
    return lines


def _of_holds(holds: Sequence[Mapping[str, Any]], more: int, *, of_job: bool) -> list[str]:
    """Return each hold and how many hosts it applies to, including upgraded hosts."""
    lines = ["", "holds:"] if holds else []
    for one in holds:
        scope, name = one["scope"], one["name"]
        what = "everything" if scope == "global" else f"{scope} {name}"
        how_many = (
            f"{plural(one['hosts'], 'host')}, {one['upgraded']} {'done' if of_job else 'upgraded'}"
            if one["hosts"] or scope == "global"
            else f"no such {scope} is known"
        )
        since = f" since {one['at']}" if one["at"] else ""
        lines.append(f"  {what} ({how_many}): held by {one['by']}{since}: {one['reason']}")
    return [*lines, *([f"  and {plural(more, 'hold')} more"] if more else [])]


def _of_providers(providers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    lines = ["", "providers:"] if providers else []
    for name in in_order(providers):
        one = providers[name]
        version = one["version"] or "no known version"
        if one["state"] == UPGRADED:
            lines.append(f"  {name}: {version}")
        elif not one["target"]:
            lines.append(f"  {name}: {one['error']}")
        else:
            verb = "failed" if one["error"] else "is"
            at = f", {one['host']} {verb} at {one['task_group']}" if one["host"] and one["task_group"] else ""
            why = f": {one['error']}" if one["error"] else ""
            lines.append(f"  {name}: {version}, on the way to {one['target']}{at}{why}")
    return lines


def _of_releases(releases: Mapping[str, int]) -> list[str]:
    """Return a line that counts the releases of the node agent."""
    counts = [f"{name} on {plural(count, 'host')}" for name, count in releases.items()]
    return ["", f"agents: {listing(counts, _MOST_HOSTS)}"] if counts else []


def headline(info: Mapping[str, Any]) -> str:
    """Return a line with the target, the previous version, who began the rollout, and how many hosts are upgraded."""
    if not info["version"]:
        return "No rollout has begun: current_version is not set."
    ledger = info.get("ledger") or {}
    came = f" from {info['previous_version']}" if info["previous_version"] else ""
    since = f", begun {_time(ledger['since'])} by {ledger['who']}" if ledger.get("since") else ""
    done, hosts = info["counts"][UPGRADED], sum(info["counts"].values())
    if is_job(info["version"]):
        state = f", {ledger['state']}" if ledger.get("state", RUNNING) != RUNNING else ""
        return f"Job {job_id(info['version'])}{since}{state}: {done} of {plural(hosts, 'host')} done"
    return f"Rollout to {info['version']}{came}{since}: {done} of {plural(hosts, 'host')} upgraded"


def _by_role(roles: Mapping[str, Mapping[str, Any]], *, of_job: bool) -> list[str]:
    columns = [*(state_text(state, of_job=of_job) for state in _COLUMNS), *([] if of_job else ["versions"])]
    rows = [["role", "hosts", *columns]]
    for role in in_order(roles):
        rows.append([role, *_numbers([roles[role]])])
    if len(roles) > 1:
        rows.append(["fleet", *_numbers([*roles.values()])])
    rows = [row[: len(rows[0])] for row in rows]
    return table_lines(rows, left=(0, len(_COLUMNS) + 2))


def _numbers(roles: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cells of a row for some roles together: hosts, states, versions."""
    versions: dict[str, int] = {}
    for one in roles:
        for version, count in one["versions"].items():
            versions[version or "never reported"] = versions.get(version or "never reported", 0) + count
    most_first = sorted(versions.items(), key=lambda pair: -pair[1])
    return [
        str(sum(one["hosts"] for one in roles)),
        *(str(sum(one["states"][state] for one in roles) or "-") for state in _COLUMNS),
        ", ".join(f"{version} ({count})" for version, count in most_first),
    ]


def reason_lines(reasons: Iterable[Mapping[str, Any]], *, of_job: bool = False) -> list[str]:
    """Return why hosts are not upgraded, each reason below its state.

    :param reasons: those of a result, in the order of their states.
    """
    lines: list[str] = []
    state = ""
    for one in reasons:
        if one["state"] != state:
            state = one["state"]
            lines += ["", f"{state_text(state, of_job=of_job)}:"]
        lines.append(f"  {some_hosts(one)}: {one['reason']}")
    return lines


def some_hosts(found: Mapping[str, Any], most: int = _MOST_HOSTS) -> str:
    """Return the first hosts of a group in a result, and how many more there are.

    :param found: ``hosts`` with the first ones, and ``count``.
    """
    shown = found["hosts"][:most]
    more = found["count"] - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def host_lines(host: Mapping[str, Any], *, of_job: bool = False) -> list[str]:
    """Return the explanation and the history of one host.

    :param host: the ``host`` of a result of ``consul_upgrade_info``.
    :param of_job: whether its state is that in a job.
    """
    group = f", group {host['group']}" if host["group"] else ""
    lines = [
        f"{host['name']} (role {host['role']}{group}): {state_text(host['state'], of_job=of_job)}",
        *(f"  {sentence}" for sentence in host["explanation"]),
    ]
    record = host["record"] or {}
    events = [
        (
            at,
            _place(state),
            f"{'by an operator' if state == 'retried' else 'reported'}: {_state(state, record)} {target_text(record['version'])}",
        )
        for state, at in (record.get("times") or {}).items()
    ]
    for event in reversed(host["events"]):
        hosts, roles = event.get("hosts") or {}, event.get("roles") or {}
        reason = hosts.get(host["name"]) or (roles.get(host["role"]) or {}).get("reason") or event.get("reason") or ""
        who = event.get("by") or ("" if reason else event.get("who"))
        details = (f" by {who}" if who else "") + (f": {reason}" if reason else "")
        what = f"{_ENTRIES.get(event['what'], event['what'])} {target_text(event['version'])}{details} (epoch {event['epoch']})"
        events.append((event["at"], _place(event["what"]), what))
    timeline = [f"  {_time(at)}  {what}" for at, _place, what in sorted(events, key=lambda one: one[:2])]
    if host.get("older_events"):
        timeline.insert(0, "  older history entries, of earlier rollouts, are left out or no longer kept")
    return [*lines, *(["", *timeline] if timeline else []), *_of_jobs(host.get("jobs") or ())]


def _state(state: str, record: Mapping[str, Any]) -> str:
    return state_text(state, of_job=is_job(record["version"]))


def _of_jobs(jobs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how the last jobs of a host ended, and their output."""
    lines = []
    for one in jobs:
        status = "" if one["exit_status"] is None else f", exit status {one['exit_status']}"
        lines += ["", f"job {one['job']}: {one['state']}{status}, {_time(one['at'])}, {one['seconds']:g} s"]
        lines += [f"  {one['error']}"] if one["error"] else []
        lines += [f"  | {line}" for line in one["output"].rstrip("\n").split("\n") if one["output"]]
    return lines


def _place(what: str) -> int:
    return _FLOW.index(what) if what in _FLOW else 0


def composition_lines(result: Mapping[str, Any]) -> list[str]:
    """Return the task groups of each role, and why roles wait for each other.

    :param result: a result of ``compose_upgrade_tasks``.
    """
    lines = [f"Composed in {result['folder']}:"] if result.get("folder") else []
    pull_roles = result.get("pull_roles", {})
    for role, what in {**result["roles"], **pull_roles}.items():
        plane = f" ({what['plane']})" if what["plane"] else ""
        lines.append(f"{role}{plane}{', run by the hosts themselves' if role in pull_roles else ''}:")
        # In the order in which they run: a step comes again for the next service.
        steps: list[tuple[str, list[str]]] = []
        for one in what["task_groups"]:
            once = ", one host for all" if one["once"] or one.get("provider") else ""
            checkpoint = f" to {one['checkpoint']}" if one.get("checkpoint") else ""
            if not steps or steps[-1][0] != one["step"]:
                steps.append((one["step"], []))
            steps[-1][1].append(f"{one['service']}{checkpoint} ({plural(one['tasks'], 'task')}{once})")
        width = max((len(step) for step, _groups in steps), default=0)
        lines += [f"  {step.ljust(width)}  {', '.join(groups)}" for step, groups in steps]
        if not steps:
            lines.append("  no tasks")
        if replaced := _replaced_in_rollback(what):
            lines.append(f"  a rollback replaces {', then '.join(replaced)}")
        lines += [f"  {sentence}" for sentence in what["dropped"]]
        lines += [f"  waits for {first}: {why}" for first, why in result["reasons"].get(role, {}).items()]
    lines += [
        f"{' and '.join(group)} require each other, so they are upgraded together." for group in result["lockstep"]
    ]
    # A folder that an older release composed has none.
    return [*lines, *result.get("kept_order", ()), *result["remarks"]]


def _replaced_in_rollback(role: Mapping[str, Any]) -> list[str]:
    """Return the services of a role in the order in which a rollback replaces them; empty if that is the order of the task groups."""
    groups = {one["name"]: one for one in role["task_groups"]} if role.get(REVERSED_TASK_GROUPS) else {}
    back = (groups[name] for name in role.get(REVERSED_TASK_GROUPS, ()))
    return [*dict.fromkeys(one["service"] for one in back if one["step"] in REPLACEMENT)]


def mistake_lines(checked: Mapping[str, Any]) -> list[str]:
    """Return a line for each mistake in instructions, with its file and line; without mistakes, the rules."""
    remarks = [f"Warning: {one}" for one in checked.get("remarks", ())]
    found = checked.get("mistakes", ())
    if not found:
        rules = json.dumps(checked["rules"], ensure_ascii=False, sort_keys=True)
        return [*remarks, f"No mistake in the instructions: {rules}"]
    lines = []
    for one in found:
        place = f"{one['file']}:{one['line']}: " if one["line"] else f"{one['file']}: " if one["file"] else ""
        # The error of a file that can't be read already names the file.
        lines.append(one["message"] if one["file"] and one["file"] in one["message"] else place + one["message"])
    return [*lines, *(remark for remark in remarks if remark.removeprefix("Warning: ") not in lines)]


def _time(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
