# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The default callback, which also writes each task's result to a file, as no JSON callback ships with ansible-core."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback.default import CallbackModule as Default

DOCUMENTATION = r"""
name: recorder
type: stdout
short_description: The default output, and each result as a line of JSON
description:
  - Appends to the file that E(CONVOY_TEST_RESULTS) names.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
"""


class CallbackModule(Default):
    """Records before the default callback prints, because that one takes things out of the results."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "recorder"

    def v2_runner_on_ok(self, result: Any, **_more: Any) -> None:
        """Record a task that went well."""
        self._record(result)
        super().v2_runner_on_ok(result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Record a task that failed."""
        self._record(result, failed=True)
        super().v2_runner_on_failed(result, ignore_errors)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """Record a task that was skipped."""
        self._record(result)
        super().v2_runner_on_skipped(result)

    @staticmethod
    def _record(result: Any, *, failed: bool = False) -> None:
        # ansible-core 2.19 and later have public properties; what 2.18 has instead is deprecated there.
        new = hasattr(result, "result")
        data = dict(result.result if new else result._result)
        task = result.task if new else result._task
        data["warnings"] = [str(one) for one in data.get("warnings") or []]
        data |= {"action": task.action, "failed": failed}
        data.pop("_ansible_no_log", None)
        with Path(os.environ["CONVOY_TEST_RESULTS"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")
