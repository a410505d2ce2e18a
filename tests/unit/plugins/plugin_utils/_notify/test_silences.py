# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The comment of a silence, from which another process finds its host again."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.silences import comment_of, host_of


@pytest.mark.parametrize(
    ("target", "comment"),
    [("2.10", "web1 is being upgraded to 2.10"), ("job/restart-1", "web1 runs the job restart-1")],
)
def test_a_comment_says_what_the_host_does_and_its_host_is_found_in_it(target: str, comment: str) -> None:
    assert comment_of("web1", target) == comment
    assert host_of(comment) == "web1"


@pytest.mark.parametrize("target", ["2.10", "job/restart-1"])
@pytest.mark.parametrize("host", ["web runs the job x", "web is being upgraded to 2"])
def test_a_host_with_such_a_name_is_found_too(host: str, target: str) -> None:
    assert host_of(comment_of(host, target)) == host


@pytest.mark.parametrize("comment", [None, "", "web1 runs the database", "a disk is being replaced"])
def test_the_comment_of_another_silence_has_no_host(comment: object) -> None:
    assert host_of(comment) == ""
