# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real modules, called within the process of the tests: for calls by the hundred, where starting Python costs most."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Mapping
from importlib import import_module
from typing import Any
from unittest import mock

from ansible.module_utils import basic
from ansible.module_utils.common import warnings
from integration.support.seen import COLLECTION


def call(module: str, options: Mapping[str, Any], *, check: bool = False) -> dict[str, Any]:
    """Call a module's ``main()``; return its result, whether it ``failed`` included. What it raises comes through.

    :param check: Ansible's check mode.
    """
    main = import_module(f"ansible_collections.{COLLECTION}.plugins.modules.{module}").main
    arguments = json.dumps({"ANSIBLE_MODULE_ARGS": {**options, "_ansible_check_mode": check}}).encode()
    # Both are a list or a dictionary, depending on the release, and outlive a call.
    for name in ("_global_warnings", "_global_deprecations"):
        getattr(warnings, name).clear()
    printed = io.StringIO()
    with (
        mock.patch.object(basic, "_ANSIBLE_ARGS", arguments),
        # From ansible-core 2.19 on.
        mock.patch.object(basic, "_ANSIBLE_PROFILE", "legacy", create=True),
        contextlib.redirect_stdout(printed),
    ):
        try:
            main()
        except SystemExit as end:
            result: dict[str, Any] = json.loads(printed.getvalue())
            return {**result, "failed": bool(end.code)}
    raise AssertionError(f"{module} came to no end: {printed.getvalue()}")
