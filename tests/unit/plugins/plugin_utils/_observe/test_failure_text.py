# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error of a failed task, from its result."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.failure_text import failure_text


def test_without_output_the_message_is_the_text() -> None:
    assert failure_text({"msg": " no space left \n", "stdout": ""}) == "no space left"
    assert failure_text({"rc": 0}) == "it failed without a message"
    assert failure_text({}).startswith("Ansible failed it without a result, such as for a role or file that it can't")


def test_the_last_lines_of_the_output_follow_unless_the_message_has_them() -> None:
    lines = "\n".join(f"line {number}" for number in range(20))
    text = failure_text({"msg": "apt failed: line 19", "stderr": lines, "stdout": "line 19\nE: broken\n"})
    assert text.splitlines() == ["apt failed: line 19", *(f"line {number}" for number in range(10, 19)), "E: broken"]


def test_a_command_that_failed_gives_its_exit_status() -> None:
    assert failure_text({"msg": "non-zero return code", "rc": 3, "stderr": "no space"}) == "exit status 3\nno space"
    assert failure_text({"msg": "non-zero return code"}) == "non-zero return code"
    assert failure_text({"msg": "no such file", "rc": 2}) == "no such file"


def test_of_a_loop_the_first_failed_item_counts() -> None:
    items = [{"msg": "fine"}, {"failed": True, "msg": "second"}, {"failed": True, "msg": "third"}]
    assert failure_text({"msg": "One or more items failed", "results": items}) == "second"
    assert failure_text({"msg": "all of it", "results": [{"msg": "fine"}]}) == "all of it"


def test_what_no_log_hides_is_not_shown() -> None:
    result = {"msg": "s3cret", "stdout": "s3cret", "results": [{"failed": True, "msg": "s3cret"}]}
    for message in (failure_text(result, True), failure_text({**result, "_ansible_no_log": True})):
        assert message.startswith("it failed, and no_log hides why")
        assert "s3cret" not in message
