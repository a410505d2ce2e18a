# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A service in ``upgrade_roles``."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.service import ServiceEntry, read_entry

_WHERE = "upgrade_roles.web.services[0]"


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        ("web", ServiceEntry("web", "web")),
        (" a.b.web ", ServiceEntry("a.b.web", "web")),
        ({"service": "a.b.web"}, ServiceEntry("a.b.web", "web")),
        ({"service": "web", "name": "web-2", "vars": {"a": 1}}, ServiceEntry("web", "web-2", {"a": 1})),
        ({"service": "web", "name": None, "vars": None}, ServiceEntry("web", "web")),
    ],
)
def test_what_a_service_may_be(value: Any, entry: ServiceEntry) -> None:
    assert read_entry(value, _WHERE) == entry


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "7 is not a service. Give the name of a role, or a mapping with service, name and vars."),
        ("", "'' is not a service."),
        ([], "[] is not a service."),
        (
            {"srvice": "web"},
            "unknown key 'srvice'; did you mean 'service'? Known are: service, name, vars, plane, "
            "versions, allowed_from, allow_downgrade.",
        ),
        ({"name": "web"}, "service is missing. Set it to the name of the role."),
        ({"service": ["web"]}, "service is missing. Set it to the name of the role."),
        ({"service": "web", "vars": [1]}, "vars: [1] does not map variables to values."),
        ({"service": "web", "name": "../x"}, "name: '../x' can't name a folder. Use letters, digits, _ and -."),
        ({"service": "web", "name": 7}, "name: 7 can't name a folder."),
        ("../web/x", "name: '/web/x' can't name a folder."),
        (
            {"service": "web", "name": "upgrade"},
            "name: 'upgrade' is a reserved tag. Give the service",
        ),
        ("step3", "name: 'step3' is a reserved tag."),
        ("a.b.never", "name: 'never' is a reserved tag."),
    ],
)
def test_what_it_may_not_be(value: Any, message: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        read_entry(value, _WHERE)
    assert caught.value.code == "bad_service"
    assert caught.value.message.startswith(f"{_WHERE}: {message}")
