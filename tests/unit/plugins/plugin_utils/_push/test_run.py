# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a driver knows of its run."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import AFTER, UPGRADE, PushRun, RunTaskGroup

UNITS = (
    RunTaskGroup("upgrade/cloud@2.4", "upgrade", "cloud", once=False, point="cloud@2.4", provider=True),
    RunTaskGroup("start/cloud@2.4", "start", "cloud", once=False, point="cloud@2.4", provider=True),
    RunTaskGroup("upgrade/app", "upgrade", "app", once=False),
    RunTaskGroup("post_upgrade/cloud", "post_upgrade", "cloud", once=True),
)


def test_a_provider_that_has_nothing_to_do_on_the_way_is_one_of_the_hosts_all_the_same() -> None:
    run = PushRun(Settings(), "2.6", UPGRADE, {"web1": "web"}, {"web": UNITS}, ("web1",))
    assert [unit.name for unit in run.units_of("web1")] == ["upgrade/app"]
    assert run.providers_of("web1") == ("cloud",)
    assert run.providers_of("web2") == ()
    assert replace(run, phase=AFTER).providers_of("web1") == ()
