# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is checked before a run begins."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.prepared_run import RunRequest, check_services


def host(services: str | None, version: str | None = "1", role: str = "cache", *, held: bool = False) -> dict[str, Any]:
    return {"role": role, "version": version, "held": held, "services": services}


def request(**hosts: dict[str, Any]) -> RunRequest:
    return RunRequest("2", {}, {"hosts": hosts}, {"roles": {}, "pull_roles": {"cache": {"tasks_id": "a1"}}}, {})


def test_pull_hosts_need_the_tasks_that_their_services_have_now() -> None:
    check_services(
        request(
            new=host(None, None),
            same=host("a1"),
            own=host("{version}"),
            held=host(None, held=True),
            other=host(None, role="web"),
        )
    )
    with pytest.raises(UpgradeError) as caught:
        check_services(request(cache1=host("a0"), cache2=host("a1"), cache3=host(None)))
    assert caught.value.message == (
        "Nothing was touched: 2 pull hosts have no tasks of services, or other ones than upgrade_roles has now: cache1, cache3. Deliver them: "
        "enroll.yml --limit cache1,cache3."
    )
    assert caught.value.details == {"hosts": ["cache1", "cache3"]}
