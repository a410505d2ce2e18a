# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ID that the agent publishes of its machine is that of the collection, and never the confidential one."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import processes
from convoy_node.machine.machine_id import is_this_machine, machine_id

RAW = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("content", [None, "", "\n", "uninitialized\n", f"{RAW}\n", RAW, "\u00e9"])
def test_the_agent_and_the_collection_publish_the_same_id(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "machine-id"
    if content is not None:
        path.write_text(content)
    assert (machine_id(str(path)) or None) == processes.machine_id(str(path))
    assert RAW not in machine_id(str(path))


def test_a_record_of_an_older_agent_is_that_of_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "machine-id"
    path.write_text(f"{RAW}\n")
    assert is_this_machine(machine_id(str(path)), str(path))
    assert is_this_machine(RAW, str(path))
    assert not is_this_machine("another", str(path))
    # Nothing is known of one of the two.
    assert is_this_machine("", str(path))
    path.write_text("uninitialized\n")
    assert is_this_machine("another", str(path))
