# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text of a failed task: complete and sanitized."""

from __future__ import annotations

from ansible_collections.convoy.upgrade.plugins.plugin_utils._observe.failed_task import failure_lines


def lines(result: dict[str, object]) -> list[str]:
    return failure_lines("web1", "Install nginx", "roles/nginx/tasks/upgrade_tasks.yml:12", result)


def test_the_message_and_all_output_are_shown() -> None:
    result = {"msg": "non-zero return code", "rc": 3, "stdout": "one\ntwo\n", "stderr": "no space left\n"}

    assert lines(result) == [
        "web1 failed at 'Install nginx' (roles/nginx/tasks/upgrade_tasks.yml:12):",
        "  non-zero return code",
        "  stderr:",
        "    no space left",
        "  stdout:",
        "    one",
        "    two",
    ]


def test_of_a_loop_the_failed_items_are_shown() -> None:
    item = {"failed": True, "msg": "no such package", "item": "nginx", "ansible_loop_var": "item"}
    found = lines({"msg": "One or more items failed", "results": [{"failed": False, "item": "curl"}, item]})

    assert found[1:] == ["  item nginx:", "    no such package"]


def test_an_unreachable_host_is_shown() -> None:
    found = failure_lines("web1", "Stop", "", {"msg": "Connection refused"}, unreachable=True)

    assert found == ["web1 can't be reached at 'Stop':", "  Connection refused"]


def test_hidden_output_stays_hidden() -> None:
    result = {
        "censored": "the output has been hidden due to the fact that 'no_log: true' was specified",
        "failed": True,
    }

    assert lines(result)[1] == "  the output has been hidden due to the fact that 'no_log: true' was specified"


def test_escape_sequences_and_bidirectional_text_are_sanitized() -> None:
    found = "\n".join(lines({"msg": "\x1b]0;owned\x07\x1b[2J", "stdout": "a\u202eb\x9b31m\r\nok: [web2]"}))

    assert all(line.isprintable() for line in found.split("\n"))
    assert "?[2J" in found
    assert "    ok: [web2]" in found


def test_long_output_is_truncated() -> None:
    found = lines({"msg": "failed", "stdout": "\n".join(f"line {number}" for number in range(1000))})

    assert "    [the first 600 lines are left out]" in found
    assert found[-1] == "    line 999"
    assert len(found) < 410


def test_output_that_is_in_the_message_is_not_repeated() -> None:
    assert lines({"msg": "it said: broken", "stderr": "broken\n"})[1:] == ["  it said: broken"]
