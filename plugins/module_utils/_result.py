# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Exit a module with its result or its failure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible.module_utils.basic import AnsibleModule

from ._common.errors import UpgradeError


def end(module: AnsibleModule, act: Callable[[], dict[str, Any]], **always: Any) -> None:
    """Call ``act``, and exit the module with its result, or with the message of the :class:`UpgradeError` that it raises.

    :param always: return values that a failure also has. A detail of the error with the same name replaces the value.
    """
    try:
        result = act()
    except UpgradeError as error:
        exception = error.details.pop("exception", None)
        more = {name: error.details.get(name, value) for name, value in always.items()}
        if exception:
            more["exception"] = exception
        module.fail_json(msg=error.as_text(), failure=error.as_failure(), **more)
    module.exit_json(**result)
