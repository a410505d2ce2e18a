# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The error of a failed task, from its result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_LINES = 10
# What Ansible says of commands, without the status.
_OF_COMMANDS = "non-zero return code"
_NO_RESULT = "Ansible failed it without a result, such as for a role or file that it can't include; the output of the run says why"
_HIDDEN = "it failed, and no_log hides why; see the service's own log, or try that task without no_log"


def failure_text(result: Mapping[str, Any], hidden: bool = False) -> str:
    """Return the message of a failed task, and the last lines of its output.

    :param result: ``ansible_failed_result``. Of a loop, the first failed item counts. Unlike the result that callbacks get, it has what
        ``no_log`` hides. Empty if there is none.
    :param hidden: whether the task has ``no_log``, from ``ansible_failed_task``. Not all releases of Ansible have it in the result.
    """
    if hidden or result.get("_ansible_no_log"):
        return _HIDDEN
    if not result:
        return _NO_RESULT
    items = result.get("results")
    if isinstance(items, list):
        result = next((one for one in items if isinstance(one, Mapping) and one.get("failed")), result)
    text = str(result.get("msg") or "it failed without a message").strip()
    if text == _OF_COMMANDS and isinstance(result.get("rc"), int):
        text = f"exit status {result['rc']}"
    for name in ("stderr", "stdout", "module_stderr", "module_stdout"):
        lines = [line.rstrip() for line in str(result.get(name) or "").splitlines() if line.strip()]
        further = [line for line in lines[-_MOST_LINES:] if line not in text]
        if further:
            text = "\n".join([text, *further])
    return text
