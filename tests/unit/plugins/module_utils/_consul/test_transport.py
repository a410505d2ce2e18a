# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which agents are asked without the proxy of the environment."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.module_utils._consul.transport import Transport


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LocalHost", True),
        ("[2001:db8::1]", False),
        ("10.0.0.1", False),
        ("consul.example.com", False),
    ],
)
def test_only_an_agent_on_this_machine_is_asked_without_a_proxy(host: str, is_local: bool) -> None:
    assert Transport(Settings(host=host))._deadline.is_local is is_local
