# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What of a failed task's result explains the failure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MOST_LINES = 10
_HIDDEN = "it failed, and no_log hides why; see the service's own log, or try that task without no_log"


def failure_text(result: Mapping[str, Any], hidden: bool = False) -> str:
    """Return the sentence of a failed task, and the last lines of what it printed.

    :param result: as in ``ansible_failed_result``; of a loop, the first item that failed counts. Unlike what callbacks get, it
        has what ``no_log`` hides.
    :param hidden: whether the task says ``no_log``, as ``ansible_failed_task`` tells. Not all releases of Ansible tell it in the
        result.
    """
    if hidden or result.get("_ansible_no_log"):
        return _HIDDEN
    items = result.get("results")
    if isinstance(items, list):
        result = next((one for one in items if isinstance(one, Mapping) and one.get("failed")), result)
    text = str(result.get("msg") or "it failed without a message").strip()
    for name in ("stderr", "stdout", "module_stderr", "module_stdout"):
        lines = [line.rstrip() for line in str(result.get(name) or "").splitlines() if line.strip()]
        updates = [line for line in lines[-_MOST_LINES:] if line not in text]
        if updates:
            text = "\n".join([text, *updates])
    return text
