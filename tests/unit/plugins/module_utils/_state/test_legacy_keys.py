# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The keys of layout 0, built and parsed."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._state.legacy_keys import LegacyKeys


@pytest.mark.parametrize("prefix", ["", "clouds/east/"])
def test_keys_are_where_the_old_code_had_them(prefix: str) -> None:
    keys = LegacyKeys(prefix)
    assert keys.report("2.8", "compute1") == f"{prefix}running_version/2.8/compute1"
    assert keys.gate("global") == f"{prefix}config_state/global/enable_puppet"
    assert keys.gate("role", "compute") == f"{prefix}config_state/role/compute/enable_puppet"
    assert keys.gate_folders == tuple(f"{prefix}config_state/{scope}/" for scope in ("global", "role", "host"))


@pytest.mark.parametrize("prefix", ["", "clouds/east/"])
def test_keys_are_parsed_as_they_were_built(prefix: str) -> None:
    keys = LegacyKeys(prefix)
    assert keys.report_of(keys.report("2.8-rc1", "dc1-compute")) == ("2.8-rc1", "dc1-compute")
    assert keys.gate_of(keys.gate("global")) == ("global", None)
    assert keys.gate_of(keys.gate("host", "enable_puppet")) == ("host", "enable_puppet")


@pytest.mark.parametrize(
    "key",
    [
        "config_state/", "config_state/global", "config_state/global/", "config_state/host/compute1", "config_state/host//enable_puppet",
        "config_state/enable_puppet/global", "config_state/enable_puppet/host/enable_puppet", "config_state/host/a/b/enable_puppet",
        "config_state/host/compute1/enable_puppet/", "config_state/host/compute1/enable_consul", "config_state/rack/r1/enable_puppet",
        "upgrade/host/compute1/enable_puppet",
    ],
)  # fmt: skip
def test_other_keys_are_not_gates(key: str) -> None:
    assert LegacyKeys().gate_of(key) is None


@pytest.mark.parametrize(
    "key",
    ["running_version/", "running_version/1", "running_version/1/", "running_version/1/rack2/compute9",
     "running/versions/1/compute1", "running_version//compute1"],
)  # fmt: skip
def test_other_keys_are_not_reports(key: str) -> None:
    assert LegacyKeys().report_of(key) is None
