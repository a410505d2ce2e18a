# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's own check of the gate gives the same answer as the code that an agent run asks."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._host.gate_question import keys_to_read, permission
from ansible_collections.convoy.upgrade.plugins.module_utils._state.keys import Keys
from ansible_collections.convoy.upgrade.plugins.module_utils._state.layout import SCHEMA as NEWEST
from ansible_collections.convoy.upgrade.plugins.module_utils._state.layout import refuse_newer
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import decode_snapshot
from convoy_node.node.consul import ConsulKey
from convoy_node.node.gate import SCHEMA, NodeKeys, answer, other_roles
from hypothesis import given
from hypothesis import strategies as st

HOST, ROLE = "compute7", "compute"
NODE, KEYS = NodeKeys(HOST, ROLE, "cloud/"), Keys("cloud/")

GATES = [b"True", b"False", b"true", b"FALSE", b" True\n", b"v1", b"v2", b"v3", b"Flase", b"", b"\xff", b"[1]", b"1"]
VALUES = {
    NODE.current_version: [b"v1", b"v2", b"", b" v2\n", b"\xff", b"a/b", b"True"],
    NODE.schema: [b"0", b"1", b"2", b"x", b"", b" 1 "],
    NODE.record: [
        b"{}",
        b"[",
        json.dumps({"version": "v1", "state": "failed", "held": "its disk"}).encode(),
        *(
            json.dumps({"version": "v1", "state": "failed", "role": now, "former_role": before}).encode()
            for now, before in (
                ("compute", "spare"),
                ("spare", None),
                ("spare", "compute"),
                ("controller", "spare"),
                ("compute", ""),
            )
        ),
    ],
    NODE.role_hold("spare"): [json.dumps({"reason": "disk", "by": "ann", "at": 1}).encode()],
    NODE.wake: [b"1"],
    NODE.holds_folder: [b"0123"],
    NODE.current_job: [b"job/j1", b"j1"],
    **{key: [b"True", b"False"] for key in NODE.job_gates},
    **{key: [b"{}", b"", json.dumps({"reason": "disk", "by": "ann", "at": 1}).encode()] for key in NODE.holds},
    **dict.fromkeys((*NODE.gates, *NODE.legacy_gates), GATES),
}


def entries() -> st.SearchStrategy[dict[str, ConsulKey]]:
    """Keys as one read returns them: few at a time, so that each of them decides often."""

    def values(key: str) -> st.SearchStrategy[tuple[str, ConsulKey]]:
        flags = st.sampled_from([0, 1700000000])
        return st.builds(
            lambda value, flag: (key, ConsulKey(value, 5, 0 if key == NODE.schema else flag)),
            st.sampled_from(VALUES[key]),
            flags,
        )

    keys = [*NODE.all, NODE.holds_folder, NODE.record, NODE.role_hold("spare")]
    return st.lists(st.sampled_from(keys).flatmap(values), max_size=5).map(dict)


def test_it_reads_the_keys_that_the_answer_depends_on() -> None:
    of_job = replace(KEYS, is_job=True)
    of_jobs = {KEYS.current_job, of_job.gate("host", HOST), of_job.gate("role", ROLE)}
    others = {KEYS.current_version, KEYS.schema, KEYS.wake(HOST)}
    assert set(NODE.all) == keys_to_read(KEYS, HOST, ROLE) | others | of_jobs
    assert NODE.record == KEYS.record(HOST)
    assert (NODE.job_record, NODE.job_output) == (of_job.record(HOST), KEYS.job_output(HOST))
    assert (NODE.job("j1"), NODE.holds_folder) == (KEYS.job("j1"), KEYS.holds)


@given(entries(), st.booleans())
def test_the_answer_is_that_of_an_agent_run(found: dict[str, ConsulKey], default: bool) -> None:
    mine = answer(NODE, found, default, other_roles(NODE, found.get(NODE.record, ConsulKey(b"", 0))))
    try:
        snapshot = decode_snapshot(KEYS, [as_entry(key, one) for key, one in found.items()])
        refuse_newer(KEYS, snapshot.schema, snapshot.release)
        theirs = permission(snapshot, HOST, ROLE, default=default, current=snapshot.current_version)
    except UpgradeError:
        # In doubt, the agent starts no upgrade.
        assert mine.is_open is None
        return
    if mine.is_open is None:
        # It may doubt more, but opens nothing.
        assert not theirs.value
        return
    assert mine.is_open == theirs.value
    assert mine.is_pending == theirs.pending
    if theirs.value:
        assert mine.version == theirs.version
    assert (mine.held is None) == (theirs.held is None)


def as_entry(key: str, entry: ConsulKey) -> KVEntry:
    return KVEntry(key, entry.value, modify_index=entry.index, flags=entry.flags)


@pytest.mark.parametrize(("value", "is_pending"), [(b"False", True), (b"v1", True)])
def test_a_node_is_pending_only_if_a_rollout_closed_the_global_gate(value: bytes, is_pending: bool) -> None:
    version = {NODE.current_version: ConsulKey(b"v2", 1)}
    by_rollout = {**version, NODE.global_gate: ConsulKey(value, 1, 1700000000)}
    assert answer(NODE, by_rollout, True).is_pending == is_pending
    assert not answer(NODE, {**version, NODE.global_gate: ConsulKey(value, 1)}, True).is_pending
    own = {**by_rollout, NODE.gates[0]: ConsulKey(b"False", 1, 1700000000)}
    assert not answer(NODE, own, True).is_pending


def test_a_hold_of_a_former_role_keeps_puppet_out_of_a_pending_host() -> None:
    former, hold = json.dumps({"version": "v1", "state": "upgraded", "role": "spare"}).encode(), NODE.role_hold("spare")
    closed = {
        NODE.current_version: ConsulKey(b"v2", 1),
        NODE.global_gate: ConsulKey(b"False", 1, 1700000000),
        NODE.record: ConsulKey(former, 1),
    }
    for found, is_pending in ((closed, True), ({**closed, hold: ConsulKey(b"{}", 1)}, False)):
        mine = answer(NODE, found, True, ("spare",))
        snapshot = decode_snapshot(KEYS, [as_entry(key, one) for key, one in found.items()])
        theirs = permission(snapshot, HOST, ROLE, default=True, current="v2")
        assert (mine.is_open, mine.is_pending) == (theirs.value, theirs.pending) == (False, is_pending)
        assert ("spare" in mine.reason) == ("spare" in theirs.reason) == theirs.hold == (not is_pending)


def test_a_newer_layout_is_shown_without_what_a_terminal_would_obey() -> None:
    number = b"00000000000000000002"
    reason = answer(NODE, {NODE.schema: ConsulKey(number + b"\x1b[2J\x07" + b"9" * 99, 1)}, True).reason
    assert number.decode() in reason
    assert reason.isprintable()
    assert len(reason) < 200


def test_it_has_the_layout_of_the_collection() -> None:
    assert NEWEST == SCHEMA


@pytest.mark.parametrize(
    ("post", "version"), [("open", "v2"), ("started", "v2"), ("failed", "v2"), ("done", None), (None, None)]
)
def test_the_record_admits_the_host_to_the_post_upgrade_tasks(post: str | None, version: str | None) -> None:
    record = json.dumps({"version": "v2", "state": "upgraded", "post": post}).encode()
    assert answer(NODE, {NODE.record: ConsulKey(record, 5, 0)}, True).post_upgrade == version
    assert answer(NODE, {NODE.record: ConsulKey(b"[1]", 5, 0)}, True).post_upgrade is None


def test_the_record_has_the_last_report_and_a_missing_one_none() -> None:
    record = json.dumps({"version": "v2", "state": "started"}).encode()
    assert answer(NODE, {NODE.record: ConsulKey(record, 5, 0)}, True).report == ("started", "v2")
    assert answer(NODE, {NODE.record: ConsulKey(b"", 0, 0)}, True).report == ("", "")
    assert answer(NODE, {}, True).report is None
