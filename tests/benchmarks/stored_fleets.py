# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fleets as they are in Consul, or in memory, in the middle of a rollout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.event import encode_event
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import encode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import encode_ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    HostRecord,
    Snapshot,
    VersionReport,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._rules.instructions import parse
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from devkit.kv import RawKV

KEYS = Keys()
OLD, NEW, OLDER = "v1", "v2", "v0"
ROLE = "compute"
# As many hosts as one planner write admits.
ADMISSIONS = 30
RULES: dict[str, Any] = {"rolling_rules": {"global": ADMISSIONS}}
_REPORTED_AT, _BEGUN_AT = 1_789_000_000, 1_789_100_000
# Entries of one former rollout: it begins, admits hosts and ends.
ENTRIES_OF_ROLLOUT = 20
_NODES_AT_ONCE = 60

Pairs = Iterator[tuple[str, str]]


def host_name(number: int) -> str:
    """Return the name of a host; the first one has number 1."""
    return f"{ROLE}{number}"


def waiting(size: int) -> Pairs:
    """Return the keys of a fleet that reported the old version, with the gates closed, before a rollout."""
    for number in range(1, size + 1):
        yield KEYS.report(OLD, host_name(number)), str(_REPORTED_AT)
    yield KEYS.gate("global"), "False"
    yield KEYS.current_version, OLD


def under_way(size: int) -> Pairs:
    """Return the keys of a fleet in which a tenth is upgraded and the rest waits, with the history of the rollout so far."""
    done = size // 10
    for number in range(1, size + 1):
        host = host_name(number)
        yield KEYS.report(NEW if number <= done else OLD, host), str(_REPORTED_AT)
        if number <= done:
            times = {"started": _BEGUN_AT, "upgraded": _BEGUN_AT + 60}
            yield KEYS.record(host), encode_record(HostRecord(NEW, "upgraded", times=times, reported=NEW))
            yield KEYS.gate("host", host), "True"
    yield KEYS.gate("global"), "False"
    yield KEYS.current_version, NEW
    # The beginning of a rollout writes it.
    yield KEYS.holds, ""
    yield from _history_of(
        1, NEW, OLD, [host_name(number) for number in range(1, done + 1)], -(-done // ADMISSIONS) + 1
    )
    yield KEYS.ledger, encode_ledger(_ledger(-(-done // ADMISSIONS) + 1))


def former_rollouts(entries: int, hosts: int) -> Pairs:
    """Return a history of that many entries, all of rollouts that are over, and the ledger of the last one.

    The oldest rollout has a version of its own, so that a report on it reads all entries.
    """
    admitted = [host_name(number) for number in range(1, hosts + 1)]
    for at in range(0, entries, ENTRIES_OF_ROLLOUT):
        version = OLDER if at == 0 else NEW if at // ENTRIES_OF_ROLLOUT % 2 else OLD
        yield from _history_of(at + 1, version, OLDER, admitted, min(ENTRIES_OF_ROLLOUT, entries - at), is_over=True)
    yield KEYS.ledger, encode_ledger(_ledger(entries, "complete"))
    yield KEYS.current_version, NEW
    yield KEYS.holds, ""


def in_memory(size: int) -> Snapshot:
    """Return the snapshot of such a fleet as :func:`under_way` stores it, without records."""
    done = size // 10
    return Snapshot(
        current_version=NEW,
        ledger=_ledger(1),
        reports={
            host_name(number): VersionReport(NEW if number <= done else OLD, float(_REPORTED_AT), number)
            for number in range(1, size + 1)
        },
        gates=Gates(GateValue(KEYS.gate("global"), "False")),
        now=float(_BEGUN_AT),
    )


def legacy_keys(size: int) -> Pairs:
    """Return what JioCloud's code has in the old places of such a fleet, with as many gates as it can have."""
    for number in range(1, size + 1):
        yield f"running_version/{OLD}/{host_name(number)}", str(_REPORTED_AT - 1)
        yield f"config_state/host/{host_name(number)}/enable_puppet", "true"
    yield "config_state/global/enable_puppet", "true"
    yield "upgrade/schema", "1"
    yield "upgrade/migration", '{"state": "kept", "from": 0, "to": 1}'


def register_nodes(kv: RawKV, size: int) -> None:
    """Register the hosts in Consul's catalog, with a role in their metadata.

    :raises RuntimeError: Consul refused it.
    """
    numbers = iter(range(1, size + 1))
    while batch := list(islice(numbers, _NODES_AT_ONCE)):
        nodes = [
            {"Node": host_name(number), "Address": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"}
            for number in batch
        ]
        operations = [{"Node": {"Verb": "set", "Node": {**node, "Meta": {"role": ROLE}}}} for node in nodes]
        code, _headers, body = kv.call("PUT", "txn", operations)
        if code != 200:
            raise RuntimeError(f"{code}: {body!r}")


def _ledger(epoch: int, state: str = "running") -> Ledger:
    return Ledger(
        epoch, NEW, OLD, state, parse(RULES).plain(), since=_BEGUN_AT, who="benchmark", commit=f"commit-{epoch}"
    )


def _history_of(
    first: int, version: str, before: str, hosts: Sequence[str], entries: int, *, is_over: bool = False
) -> Pairs:
    """Return the entries of one rollout, from the epoch ``first`` on."""

    def entry(epoch: int, **fields: Any) -> tuple[str, str]:
        head = {"epoch": epoch, "at": _BEGUN_AT + epoch, "who": "benchmark", "commit": f"commit-{epoch}"}
        return KEYS.event(epoch), encode_event({**head, "version": version, **fields})

    yield entry(first, what="begin", **{"from": before}, instructions=RULES, reason=f"benchmark asked for {version}")
    admitting = range(1, entries - is_over)
    each = -(-len(hosts) // max(1, len(admitting)))
    for number in admitting:
        admitted = hosts[(number - 1) * each : number * each]
        reasons = {host: f"slot {at} of {ADMISSIONS}" for at, host in enumerate(admitted, 1)}
        yield entry(first + number, what="open", hosts=reasons, roles={})
    if is_over and entries > 1:
        yield entry(first + entries - 1, what="complete")
