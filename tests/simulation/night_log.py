# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A night in a few lines that can be read: who wrote what, and what went wrong, up to the first violation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from fire.facts import GATES, HISTORY, HOLDS, LEDGER, RECORDS, REPORTS, data_of
from fire.replay import Step

from .actor import Actor
from .network import Network
from .stand_ins import BEGIN

JOB_RECORDS = "upgrade/job_records/"
_DETAILS = 120


def night_log(network: Network, faults: Sequence[tuple[float, str]], index: int | None) -> list[str]:
    """Return the lines up to an index, or up to the end.

    :param faults: time (seconds of the night) and text of each fault.
    """
    steps = [step for step in network.steps if index is None or step.index <= index]
    # What wakes processes or shows that they are alive is left out, unless it is the last one.
    texts = [(step, "; ".join(_changes(step))) for step in steps]
    found = [(_time(step), f"{_who(step)}: {text}") for step, text in texts[:-1] if text]
    found += [(_time(step), f"{_who(step)}: {text or ', '.join(step.changed())}") for step, text in texts[-1:]]
    last = found[-1][0] if found else 0.0
    found += [(at, f"-- {text}") for at, text in faults if index is None or at <= last]
    return [f"{at:8.3f} s  {text}" for at, text in sorted(found)]


def shown_by(network: Network, index: int | None) -> str:
    """Return who wrote the keys of an index, and of which events the history has got entries by that."""
    for step in network.steps:
        if step.index == index:
            entries = {key: after for key, (_before, after) in step.changed().items() if key.startswith(HISTORY)}
            return f"{_who(step)}: {', '.join(sorted({data_of(after)['what'] for after in entries.values() if after}))}"
    return ""


def stuck(network: Network, prefixes: tuple[str, ...], actors: Sequence[Actor]) -> str:
    """Return a line for each key below some prefixes, that of the ledger first, then where each process waits."""
    found = sorted((key != LEDGER, key, one.value) for key, one in network.now.items() if key.startswith(prefixes))
    stacks = [f"{actor.name}:\n{actor.process.stacks()}" for actor in actors]
    return "\n".join([*(f"{key}: {json.dumps(value)}" for _order, key, value in found), *stacks])


def _time(step: Step) -> float:
    return (step.write.answered_at if step.write is not None else step.done_at) - BEGIN


def _who(step: Step) -> str:
    return step.write.who if step.write is not None else "Consul"


def _changes(step: Step) -> Iterator[str]:
    """Return what a step did: the event of the history, then reports, records, holds and gates without one."""
    changed = step.changed()
    events = [data_of(after) for key, (_before, after) in changed.items() if key.startswith(HISTORY) and after]
    for event in events:
        names = [*event.get("hosts", ()), *event.get("roles", ())]
        yield f"epoch {event['epoch']}, {event['what']} {_cut(', '.join(map(str, names)))}".rstrip()
    for key, (_before, after) in changed.items():
        if key.startswith(RECORDS) and after is not None:
            record = data_of(after)
            yield f"{key.removeprefix(RECORDS)} {record['state']} {record['version']}"
        elif key.startswith(JOB_RECORDS) and after is not None:
            record = data_of(after)
            yield f"{key.removeprefix(JOB_RECORDS)} {record.get('state')} {record.get('job')}"
        elif key.startswith(REPORTS) and after is not None:
            yield f"report {key.removeprefix(REPORTS)}"
        elif key.startswith(HOLDS) or (key.startswith(GATES) and not events):
            yield f"{key} {'is deleted' if after is None else after.value}"


def _cut(text: str) -> str:
    return text if len(text) <= _DETAILS else f"{text[:_DETAILS]}..."
