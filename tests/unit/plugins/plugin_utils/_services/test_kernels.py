# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The newest of several kernel releases."""

from __future__ import annotations

import itertools

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.kernels import newest_kernel


@pytest.mark.parametrize(
    "releases",
    [
        ["6.1.0-9-amd64", "6.1.0-10-amd64", "6.1.0-37-amd64", "6.12.9+bpo-amd64"],
        ["5.10.0-28-cloud-amd64", "6.1.0-0.deb11.21-cloud-amd64", "6.1.0-9-cloud-amd64"],
        ["0-rescue-0e4fa2c21c0c4e0c9e5d8d5d4d2a8b90", "3.10.0-1160.el7.x86_64", "3.10.0-1160.2.1.el7.x86_64"],
        ["4.18.0-513.24.1.el8_9.x86_64", "5.14.0-70.13.1.el9_0.x86_64", "5.14.0-427.el9.x86_64"],
        ["5.14.0-427.el9.x86_64", "5.14.0-427.13.1.el9_4.x86_64", "5.14.0-503.11.1.el9_5.x86_64"],
        ["6.12.0-rc7", "6.12.0", "6.12.1-rc1", "6.12.1"],
        ["5.15.0-9-generic", "5.15.0-107-generic", "6.8.0-31-generic"],
    ],
)
def test_each_is_newer_than_those_before_it(releases: list[str]) -> None:
    for older, newer in itertools.combinations(releases, 2):
        assert newest_kernel([older, newer]) == newest_kernel([newer, older]) == newer


def test_of_none_there_is_no_newest() -> None:
    with pytest.raises(ValueError, match="empty"):
        newest_kernel([])


@pytest.mark.parametrize(
    ("running", "others", "newest"),
    [
        ("6.1.0-9-amd64", ["6.1.0-10-amd64", "6.1.0-11-cloud-amd64", "6.1.0-12-rt-amd64"], "6.1.0-10-amd64"),
        ("6.1.0-9-cloud-amd64", ["6.1.0-10-amd64"], "6.1.0-9-cloud-amd64"),
        ("6.1.0-37-amd64", ["6.12.9+bpo-amd64"], "6.12.9+bpo-amd64"),
        ("5.14.0-427.el9.x86_64", ["5.14.0-503.el9.x86_64+rt", "0-rescue-0e4fa2c2"], "5.14.0-427.el9.x86_64"),
        ("5.14.0-427.el9.x86_64", ["5.14.0-503.11.1.el9_5.x86_64"], "5.14.0-503.11.1.el9_5.x86_64"),
        ("4.18.0-513.el8_9.x86_64", ["5.15.0-200.131.27.el8uek.x86_64"], "4.18.0-513.el8_9.x86_64"),
        ("5.15.0-200.131.27.el8uek.x86_64", ["5.15.0-201.135.6.el8uek.x86_64"], "5.15.0-201.135.6.el8uek.x86_64"),
        ("5.14.0-427.el9.x86_64", ["6.9.7-1.el9.elrepo.x86_64"], "5.14.0-427.el9.x86_64"),
        ("6.9.7-1.el9.elrepo.x86_64", ["6.10.2-1.el9.elrepo.x86_64"], "6.10.2-1.el9.elrepo.x86_64"),
        ("4.18.0-513.el8_9.x86_64", ["4.18.0-553.5.1.rt7.346.el8_10.x86_64"], "4.18.0-513.el8_9.x86_64"),
        (
            "4.18.0-513.5.1.rt7.307.el8_9.x86_64",
            ["4.18.0-553.5.1.rt7.346.el8_10.x86_64"],
            "4.18.0-553.5.1.rt7.346.el8_10.x86_64",
        ),
        ("5.14.0-427.el9.aarch64", ["5.14.0-503.el9.aarch64+64k"], "5.14.0-427.el9.aarch64"),
        # Kernels of the host that it was cloned from, and none at all.
        ("6.8.0-31-generic", ["5.15.0-107-generic"], "6.8.0-31-generic"),
        ("6.8.0-31-generic", [], "6.8.0-31-generic"),
    ],
)
def test_only_kernels_of_the_flavour_of_the_running_one_count(running: str, others: list[str], newest: str) -> None:
    assert newest_kernel(others, running) == newest
