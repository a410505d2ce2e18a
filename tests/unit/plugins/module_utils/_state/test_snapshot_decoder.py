# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys that change one after the other give the same snapshot as all of them decoded at once."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.client import KVEntry
from ansible_collections.convoy.upgrade.plugins.module_utils._fleet.fleet import Snapshot
from ansible_collections.convoy.upgrade.plugins.module_utils._state.snapshot import SnapshotDecoder, decode_snapshot
from hypothesis import given
from hypothesis import strategies as st
from raw_keys import KEYS

_HOSTS = ("web1", "web2", "db1")
_RECORDS = (
    b'{"version": "2.0", "state": "started"}',
    b'{"version": "2.0", "state": "upgraded", "times": {"upgraded": 5}}',
    b'{"version": "1.0", "state": "upgraded", "held": "broken disk"}',
    b"nothing",
)
_GATES = (b"True", b"False", b"2.0", b"", b"\xff")
_VALUES = {
    **{f"running/versions/{version}/{host}": (b"5", b"7", b"") for version in ("1.0", "2.0", "") for host in _HOSTS},
    **{f"running_version/{version}/{host}": (b"5", b"7", b"") for version in ("1.0", "2.0") for host in _HOSTS},
    **{f"upgrade/hosts/{host}": _RECORDS for host in (*_HOSTS, "a/b", "")},
    **{f"config_state/enable_puppet/host/{host}": _GATES for host in _HOSTS},
    **{f"config_state/host/{host}/enable_puppet": _GATES for host in _HOSTS},
    **{f"upgrade/hold/host/{host}": (b"{}", b"RAM test") for host in _HOSTS},
    **{f"upgrade/health/{host}": (b'{"version": "2.0", "since": 5, "upgraded": true}', b"?") for host in _HOSTS},
    **{f"upgrade/drivers/{host}": (b"{}",) for host in _HOSTS},
    "config_state/enable_puppet/global": _GATES,
    "config_state/enable_puppet/role/web": _GATES,
    "config_state/enable_puppet/odd": _GATES,
    "config_state/role/web/enable_puppet": _GATES,
    "config_state/global/enable_puppet": _GATES,
    "upgrade/hold/global": (b"{}",),
    "upgrade/hold/role/web": (b"{}", b"RAM test"),
    "upgrade/hold/": (b"1", b"2"),
    "upgrade/approval/canary": (b"yes", b"no"),
    "upgrade/providers/db": (b'{"version": "2.0"}', b"?"),
    "upgrade/ledger": (b'{"epoch": 1, "version": "2.0"}', b'{"epoch": 2, "version": "2.0", "state": "running"}', b"?"),
    "upgrade/schema": (b"1", b"0"),
    "upgrade/migration": (b"{}",),
    "current_version": (b"1.0", b"2.0", b"", b"bad\x00"),
    "something/else": (b"",),
}
_CHANGES = st.lists(
    st.sampled_from(sorted(_VALUES)).flatmap(
        lambda key: st.tuples(st.just(key), st.one_of(st.none(), st.sampled_from(_VALUES[key])))
    ),
    min_size=1,
    max_size=40,
)


def outcome(act: Any) -> Snapshot | str:
    try:
        found = act()
    except UpgradeError as error:
        return error.message
    # The order of hosts and of warnings, and the highest index of a key that is gone, say nothing.
    return Snapshot(
        **{name: getattr(found, name) for name in Snapshot.__slots__ if name not in ("warnings", "index")},
        warnings=tuple(sorted(found.warnings)),
    )


@given(st.lists(_CHANGES, min_size=1, max_size=4))
def test_changes_give_the_same_snapshot_as_everything_decoded_at_once(
    rounds: list[list[tuple[str, bytes | None]]],
) -> None:
    decoder, entries, index = SnapshotDecoder(KEYS), {}, 0
    for changes in rounds:
        for key, value in changes:
            index += 1
            whole = f"cloud/{key}"
            if value is None:
                entries.pop(whole, None)
                decoder.remove(whole)
            else:
                entries[whole] = KVEntry(whole, value, index)
                decoder.put(entries[whole])
        in_order = sorted(entries.values(), key=lambda one: one.modify_index)
        assert outcome(decoder.snapshot) == outcome(lambda: decode_snapshot(KEYS, in_order))  # noqa: B023


def test_values_of_unchanged_keys_are_the_same_objects() -> None:
    decoder = SnapshotDecoder(KEYS)
    for index, host in enumerate(("web1", "web2"), 1):
        decoder.put(KVEntry(f"cloud/upgrade/hosts/{host}", _RECORDS[2], index))
        decoder.put(KVEntry(f"cloud/running/versions/1.0/{host}", b"5", index))
        decoder.put(KVEntry(f"cloud/config_state/enable_puppet/host/{host}", b"True", index))
    first = decoder.snapshot()
    decoder.put(KVEntry("cloud/upgrade/hosts/web2", _RECORDS[1], 9))
    second = decoder.snapshot()
    for name in ("reports", "records"):
        assert getattr(second, name)["web1"] is getattr(first, name)["web1"]
    assert second.gates.hosts["web1"] is first.gates.hosts["web1"]
    assert second.holds.own["web1"] is first.holds.own["web1"]
    assert (first.records["web2"].version, second.records["web2"].version) == ("1.0", "2.0")
    assert (second.index, first.index) == (9, 2)


@pytest.mark.parametrize("key", ["upgrade/ledger", "current_version", "upgrade/schema"])
def test_a_value_that_can_not_be_read_stops_each_snapshot_until_it_is_gone(key: str) -> None:
    decoder = SnapshotDecoder(KEYS)
    decoder.put(KVEntry(f"cloud/{key}", b"\xff", 1))
    for _try in range(2):
        with pytest.raises(UpgradeError):
            decoder.snapshot()
    decoder.remove(f"cloud/{key}")
    assert decoder.snapshot() == Snapshot(index=1)
