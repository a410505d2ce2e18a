# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All keys of a fleet as one snapshot: what is read, what is ignored, and that no odd key stops the reader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.record import decode_record
from ansible_collections.convoy.upgrade.plugins.module_utils._codecs.values import (
    decode_approval,
    decode_health_mark,
    decode_hold,
    encode_ledger,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import (
    RECORD_STATES,
    STARTED,
    HostRecord,
    Snapshot,
    VersionReport,
)
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.gates import Gates, GateValue
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.health_marks import Approval, HealthMark
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.holds import Hold, Holds
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.ledger import Ledger
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import decode_snapshot
from hypothesis import given
from hypothesis import strategies as st
from raw_keys import KEYS, NOT_TEXT, read


def test_nothing_at_all() -> None:
    assert read({}) == Snapshot()


def test_everything_is_found_in_its_place() -> None:
    ledger = Ledger(3, "2.0", "1.0")
    found = read(
        {
            "current_version": b"2.0\n",
            "upgrade/ledger": encode_ledger(ledger).encode(),
            "upgrade/schema": b"1",
            "running/versions/1.0/compute1": b"1700000000",
            "running/versions/2.0/compute2": b"1700000000.5",
            "config_state/enable_puppet/global": b"False",
            "config_state/enable_puppet/role/compute": b"true",
            "config_state/enable_puppet/host/compute1": b"2.0",
            "upgrade/hosts/compute1": b'{"version": "2.0", "state": "started"}',
            "upgrade/hold/global": b'{"reason": "freeze", "by": "ann", "at": "noon"}',
            "upgrade/hold/role/compute": b"{}",
            "upgrade/hold/host/compute1": b"RAM test",
        }
    )

    gates, holds = "cloud/config_state/enable_puppet", "cloud/upgrade/hold"
    assert found == Snapshot(
        current_version="2.0",
        ledger=ledger,
        reports={"compute1": VersionReport("1.0", 1_700_000_000), "compute2": VersionReport("2.0", 1_700_000_000.5)},
        records={"compute1": HostRecord("2.0", STARTED)},
        gates=Gates(
            GateValue(f"{gates}/global", "False"),
            {"compute": GateValue(f"{gates}/role/compute", "true")},
            {"compute1": GateValue(f"{gates}/host/compute1", "2.0")},
        ),
        holds=Holds(
            Hold(f"{holds}/global", "freeze", "ann", "noon"),
            {"compute": Hold(f"{holds}/role/compute")},
            {"compute1": Hold(f"{holds}/host/compute1", "RAM test")},
        ),
        index=16,
        version_index=5,
        ledger_index=6,
        schema=1,
    )


def test_keys_of_another_prefix_and_of_other_tools_are_ignored() -> None:
    entries = [KVEntry("current_version", b"9", 1), KVEntry("cloud/current_version.bak", b"9", 2), KVEntry("x", b"", 3)]

    assert decode_snapshot(KEYS, entries) == Snapshot(index=3)


def test_folder_placeholders_are_not_entries() -> None:
    folders = [
        "running/versions/",
        "running/versions/2.0/",
        "config_state/enable_puppet/",
        "config_state/enable_puppet/host/",
        "config_state/enable_puppet/role/",
        "config_state/enable_puppet/role/compute/",
        "upgrade/hosts/",
        "upgrade/hold/",
        "upgrade/hold/host/",
        "upgrade/hold/global/",
    ]

    assert read(dict.fromkeys(folders, b"")) == Snapshot(
        index=4 + len(folders), hold_index=5 + folders.index("upgrade/hold/")
    )


@pytest.mark.parametrize(
    ("key", "warning"),
    [
        (
            "running/versions/2.0/gb/compute1",
            "'cloud/running/versions/2.0/gb/compute1' is ignored: it is not running/versions/<version>/<host>.",
        ),
        (
            "running/versions/compute1",
            "'cloud/running/versions/compute1' is ignored: it is not running/versions/<version>/<host>.",
        ),
        (
            "running/versions//compute1",
            "'cloud/running/versions//compute1' is ignored: it is not running/versions/<version>/<host>.",
        ),
        (
            "running/versions/2.0/comp\ufffdte1",
            "'cloud/running/versions/2.0/comp\ufffdte1' is ignored: it is not running/versions/<version>/<host>.",
        ),
        (
            "config_state/enable_puppet/host/gb/compute1",
            "'cloud/config_state/enable_puppet/host/gb/compute1' is ignored: "
            "it is not a gate of a host, a role or everything.",
        ),
        (
            "config_state/enable_puppet/hosts/compute1",
            "'cloud/config_state/enable_puppet/hosts/compute1' is ignored: "
            "it is not a gate of a host, a role or everything.",
        ),
        (
            "config_state/enable_puppet/globl",
            "'cloud/config_state/enable_puppet/globl' is ignored: it is not a gate of a host, a role or everything.",
        ),
        (
            "upgrade/hold/compute1",
            "'cloud/upgrade/hold/compute1' is ignored: it is not a hold of a host, a role or everything.",
        ),
        (
            "upgrade/hold/role/a/b",
            "'cloud/upgrade/hold/role/a/b' is ignored: it is not a hold of a host, a role or everything.",
        ),
    ],
)
def test_an_unknown_key_is_ignored_with_a_warning(key: str, warning: str) -> None:
    assert read({key: b"True"}) == Snapshot(index=5, warnings=(warning,))


@pytest.mark.parametrize(("value", "text"), [(b"", ""), (b"Flase", "Flase"), (NOT_TEXT, None)])
def test_gates_that_can_not_be_read_are_kept(value: bytes, text: str | None) -> None:
    found = read({"config_state/enable_puppet/host/compute1": value}).gates.hosts["compute1"]

    assert found.text == text
    with pytest.raises(UpgradeError, match="cloud/config_state/enable_puppet/host/compute1"):
        found.is_open("2.0")


@pytest.mark.parametrize("value", [b"", b"yesterday", NOT_TEXT, b"nan", b"inf", b"-1e300"])
def test_a_report_counts_even_if_its_time_can_not_be_read(value: bytes) -> None:
    assert read({"running/versions/1.0/compute1": value}).reports == {"compute1": VersionReport("1.0", None)}


@pytest.mark.parametrize(
    ("entries", "chosen", "passed_over"),
    [
        ({"1.0": b"100", "2.0": b"200"}, VersionReport("2.0", 200.0), "1.0"),
        ({"1.0": b"200", "2.0": b"100"}, VersionReport("1.0", 200.0), "2.0"),
        ({"1.0": b"100", "2.0": b"soon"}, VersionReport("2.0", None), "1.0"),
        ({"1.0": b"100", "2.0": b"100"}, VersionReport("1.0", 100.0), "2.0"),
        ({"1.0": b"", "2.0": b""}, VersionReport("2.0", None), "1.0"),
        ({"1.0": b"", "2.0": b"0"}, VersionReport("2.0", 0.0), "1.0"),
    ],
)
def test_of_two_reports_the_later_counts_and_then_the_one_of_another_version(
    entries: dict[str, bytes], chosen: VersionReport, passed_over: str
) -> None:
    reports = {f"running/versions/{version}/compute1": value for version, value in entries.items()}
    found = read({"current_version": b"2.0", **reports})

    assert found.reports == {"compute1": chosen}
    assert found.warnings == (
        f"compute1 reported several versions; {chosen.version!r} counts. Ignored: "
        f"cloud/running/versions/{passed_over}/compute1.",
    )


@pytest.mark.parametrize("times", [(b"100", b"soon"), (b"", b"100"), (b"", b"")])
@pytest.mark.parametrize(
    "places", [("running/versions/1.0/", "running/versions/2.0/"), ("running_version/1.0/", "running/versions/2.0/")]
)
def test_if_a_time_can_not_be_read_the_report_that_was_written_last_counts(
    times: tuple[bytes, bytes], places: tuple[str, str]
) -> None:
    for newer in (0, 1):
        for in_order in (times, times[::-1]):
            entries = [
                KVEntry(f"cloud/{place}compute1", value, 9 if number == newer else 4)
                for number, (place, value) in enumerate(zip(places, in_order, strict=True))
            ]
            version = ("1.0", "2.0")[newer]
            assert decode_snapshot(KEYS, entries).reports["compute1"].version == version


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from(
                (
                    *(
                        "running/versions/",
                        "config_state/enable_puppet/",
                        "upgrade/hosts/",
                        "upgrade/hold/",
                        "upgrade/",
                    ),
                    *("upgrade/health/", "upgrade/approval/", "upgrade/drivers/"),
                )
            ),
            st.text(alphabet="a1/ glob\ufffd", max_size=8),
        ).map("".join),
        st.binary(max_size=12) | st.sampled_from((b"{}", b"True", b"2.0", b"1700000000")),
    )
)
def test_no_key_and_no_bytes_stop_the_reader(entries: dict[str, bytes]) -> None:
    assert isinstance(read(entries), Snapshot)


FIELDS = st.sampled_from(("version", "state", "times", "attempt", "reason", "by", "at", "since", "started"))

SCALARS = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(FIELDS, inner), max_leaves=12))
def test_no_json_stops_the_reader_of_records_and_holds_marks_and_approvals(data: Any) -> None:
    value = json.dumps(data).encode()

    assert decode_record("k", value).state in RECORD_STATES
    assert decode_hold("k", value).key == "k"
    assert isinstance(decode_health_mark(value), HealthMark | None)
    assert isinstance(decode_approval(value), Approval | None)
