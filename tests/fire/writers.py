# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which process may write which key: beside the ledger, and with the ledger by an event of the history."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from .facts import (
    APPROVALS,
    CURRENT,
    GATES,
    HANDOVER,
    HISTORY,
    HOLDS,
    HOSTS_OWN,
    LEASES,
    LEDGER,
    MARKS,
    NOTIFIED,
    ONCES,
    PLANNERS,
    RECORDS,
    WAKES,
    data_of,
)
from .journal import Write
from .replay import Step

# Event of the history -> the keys that such a write may have, besides the ledger and the history.
_OF_EVENTS: Mapping[str, tuple[str, ...]] = {
    "begin": (CURRENT, GATES, HOLDS, MARKS, APPROVALS, ONCES, "upgrade/schema"),
    "rules": (CURRENT, APPROVALS),
    "open": (GATES, WAKES),
    "close": (GATES,),
    "complete": (GATES,),
    "converge": (GATES,),
    "health": (MARKS,),
    "stage": (),
    "budget": (),
    "pause": (),
    "resume": (),
    "abort": (),
    "approve": (APPROVALS,),
    "hold": (HOLDS,),
    "unhold": (HOLDS,),
    "retry": (RECORDS, MARKS, GATES),
}
_OF_PASSES = ("begin", "rules", "open", "close", "complete", "converge", "health", "stage", "budget")
# Kind of process -> the events that it may write.
_EVENTS: Mapping[str, Collection[str]] = {
    "planner": _OF_PASSES,
    "push": (*_OF_PASSES, "retry"),
    "operator": _OF_EVENTS,
    "holder": ("hold", "unhold"),
    # It makes passes that admit no host.
    "beginner": [what for what in _OF_PASSES if what != "open"],
}
# Kind of process -> the keys that it may write beside the ledger.
_BESIDE: Mapping[str, tuple[str, ...]] = {
    "planner": (WAKES, HANDOVER, PLANNERS),
    "push": (WAKES, HANDOVER, LEASES, ONCES, *HOSTS_OWN),
    "operator": (WAKES,),
    "holder": (WAKES,),
    "beginner": (HANDOVER,),
    "nodes": HOSTS_OWN,
    "notifier": (NOTIFIED,),
    "reader": (),
}
# Those that act for hosts. Each of their writes beside the ledger is about one host.
_FOR_HOSTS, _OF_HOSTS = ("nodes", "push"), (*HOSTS_OWN, LEASES)


def mistakes(step: Step, write: Write, hosts_of: Mapping[str, Collection[str]]) -> Iterator[str]:
    """Yield the keys of a write that its process may not write.

    :param hosts_of: process -> the hosts that it acts for; those that are missing may act for all.
    """
    changed, kind = step.changed(), kind_of(write.who)
    if LEDGER not in changed:
        yield from _beside_the_ledger(step, write, kind, hosts_of.get(write.who))
        return
    for key, (_before, after) in changed.items():
        if key.startswith(HISTORY) and after is not None:
            event = data_of(after)
            yield from _with_event(event["what"], event.get("hosts", ()), step, write, kind)


def kind_of(who: str) -> str:
    """Return what kind of process has a name. A planner service may have any."""
    name = who.rstrip("0123456789")
    return name if name in _BESIDE else "planner"


def _with_event(what: str, hosts: Collection[str], step: Step, write: Write, kind: str) -> Iterator[str]:
    if what not in _EVENTS.get(kind, ()):
        yield f"{write.who} wrote an event {what}"
    allowed = (LEDGER, HISTORY, *_OF_EVENTS.get(what, ()))
    for key in _written(step, write):
        if not key.startswith(allowed):
            yield f"{write.who} wrote {key} with an event {what}"
        elif key.startswith(RECORDS) and key[len(RECORDS) :] not in hosts:
            yield f"{write.who} wrote {key} with an event {what}, which does not name that host"


def _beside_the_ledger(step: Step, write: Write, kind: str, mine: Collection[str] | None) -> Iterator[str]:
    allowed = _BESIDE[kind]
    if kind in ("operator", "holder") and LEDGER not in step.before:
        # Before a rollout there is no ledger that holds could be in.
        allowed = (*allowed, HOLDS)
    hosts = set()
    for key in _written(step, write):
        is_given = key == HANDOVER and step.after.get(key) is not None
        if not key.startswith(allowed) or (is_given and kind != "beginner"):
            yield f"{write.who} changed {key} beside the ledger"
        elif key.startswith(PLANNERS) and key != f"{PLANNERS}{write.who}":
            yield f"{write.who} changed {key}, which is another planner's"
        elif kind in _FOR_HOSTS and key.startswith(_OF_HOSTS):
            host = key.rpartition("/")[2]
            hosts.add(host)
            if mine is not None and host not in mine:
                yield f"{write.who} changed {key}, and acts for {', '.join(mine)}"
    if len(hosts) > 1:
        yield f"{write.who} changed keys of {', '.join(sorted(hosts))} in one write"


def _written(step: Step, write: Write) -> list[str]:
    """Return the keys that a write names or changed, also those that it set to what they were."""
    named = {one["Key"] for one in write.operations if not one["Verb"].startswith(("get", "check"))}
    # A tree that is deleted is named by its folder.
    return sorted({*named, *step.changed()})
