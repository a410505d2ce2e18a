# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The task groups and providers of the hosts of a push run."""

from __future__ import annotations

from dataclasses import replace

from ansible_collections.convoy.upgrade.plugins.module_utils._consul.settings import Settings
from ansible_collections.convoy.upgrade.plugins.plugin_utils._push.run import (
    POST_UPGRADE_PHASE,
    UPGRADE,
    PushRun,
    RunTaskGroup,
)

TASK_GROUPS = (
    RunTaskGroup("upgrade/cloud@2.4", "upgrade", "cloud", once=False, checkpoint="cloud@2.4", provider=True),
    RunTaskGroup("start/cloud@2.4", "start", "cloud", once=False, checkpoint="cloud@2.4", provider=True),
    RunTaskGroup("upgrade/app", "upgrade", "app", once=False),
    RunTaskGroup("post_upgrade/cloud", "post_upgrade", "cloud", once=True),
)


def test_a_host_upgrades_a_provider_that_has_no_task_group_on_its_path() -> None:
    run = PushRun(Settings(), "2.6", UPGRADE, {"web1": "web"}, {"web": TASK_GROUPS}, ("web1",))
    assert [task_group.name for task_group in run.task_groups_of("web1")] == ["upgrade/app"]
    assert run.providers_of("web1") == ("cloud",)
    assert run.providers_of("web2") == ()
    assert replace(run, phase=POST_UPGRADE_PHASE).providers_of("web1") == ()
