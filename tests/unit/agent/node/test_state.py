# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""When Puppet last ran: known to the next agent, after a boot too, and whatever the clock of the node says."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from convoy_node.node import state
from convoy_node.node.state import PuppetRuns, node_version


def near(found: float | None, expected: float) -> bool:
    return found is not None and abs(found - expected) < 2


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "state/agent.json")


def test_the_next_agent_reads_when_puppet_ran(file: str) -> None:
    assert PuppetRuns(file).last() is None
    PuppetRuns(file).note(ago=100)
    assert near(PuppetRuns(file).last(), time.monotonic() - 100)


def test_within_a_boot_the_clock_of_the_node_does_not_matter(file: str) -> None:
    PuppetRuns(file).note(ago=100)
    facts = json.loads(Path(file).read_text())
    for off in (-86_400, 86_400):
        Path(file).write_text(json.dumps({**facts, "at": facts["at"] + off}))
        assert near(PuppetRuns(file).last(), time.monotonic() - 100)


def test_after_a_boot_the_time_of_day_has_to_do_unless_it_is_in_the_future(
    file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PuppetRuns(file).note(ago=100)
    monkeypatch.setattr(state, "_boot_id", lambda: "another")
    assert near(PuppetRuns(file).last(), time.monotonic() - 100)
    facts = json.loads(Path(file).read_text())
    Path(file).write_text(json.dumps({**facts, "at": time.time() + 86_400}))
    assert PuppetRuns(file).last() is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"at": "x", "boot": "", "monotonic": 1}', '{"at": 1}'),
        f'{{"at": {"9" * 400}, "boot": "", "monotonic": 1}}',
        '{"at": 1e999, "boot": "", "monotonic": 1}',
    ],
)
def test_what_can_t_be_read_is_not_known(text: str, file: str) -> None:
    Path(file).parent.mkdir()
    Path(file).write_text(text)
    assert PuppetRuns(file).last() is None


def test_on_a_full_disk_this_agent_still_remembers_it(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    runs = PuppetRuns(str(tmp_path / "state/agent.json"))
    runs.note()
    assert near(runs.last(), time.monotonic())


def test_an_empty_version_file_is_an_upgrade_that_has_not_ended(tmp_path: Path) -> None:
    file = tmp_path / "version"
    assert node_version(str(file)) is None
    file.write_text("v1\n")
    assert node_version(str(file)) == "v1"
    file.write_text("\n")
    assert node_version(str(file)) == ""
    # So an agent run finds out, and reports it.
    assert node_version(str(tmp_path)) == ""
