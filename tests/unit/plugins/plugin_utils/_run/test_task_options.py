# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of ansible-playbook that select tasks."""

from __future__ import annotations

import pytest
from ansible import constants
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.task_options import refuse_task_options


@pytest.mark.parametrize("tag", ["always", "tagged"])
def test_tags_without_which_nothing_is_planned_are_not_skipped(tag: str) -> None:
    refuse_task_options("upgrade", {"skip_tags": ["may_stop"], "tags": ["all"]})
    with pytest.raises(UpgradeError, match=f"--skip-tags {tag}: it would skip the plan") as refused:
        refuse_task_options("upgrade", {"skip_tags": ["may_stop", tag]})
    assert (refused.value.code, refused.value.details["option"]) == ("refused_option", "--skip-tags")


@pytest.mark.parametrize("playbook", ["upgrade", "post_upgrade", "command"])
def test_handlers_are_not_forced_on_hosts_that_failed(playbook: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"force_handlers": True}
    with pytest.raises(UpgradeError, match="--force-handlers: handlers do not run on a host that failed") as refused:
        refuse_task_options(playbook, given)
    assert (refused.value.code, refused.value.details["option"]) == ("refused_option", "--force-handlers")
    # It may be for the plays of the playbook that imports it, and in ansible.cfg for other playbooks.
    refuse_task_options(playbook, given, is_imported=True)
    refuse_task_options("pause", given)
    monkeypatch.setattr(constants, "DEFAULT_FORCE_HANDLERS", True, raising=False)
    refuse_task_options(playbook, given)


@pytest.mark.parametrize("option", ["step", "start_at_task", "tags", "skip_tags"])
def test_a_job_is_run_as_a_whole(option: str) -> None:
    refuse_task_options("command", {"tags": ["all"], "skip_tags": []})
    with pytest.raises(UpgradeError, match="would count as done"):
        refuse_task_options("command", {option: ["restart"]})


@pytest.mark.parametrize("playbook", ["pause", "abort", "hold", "retry", "global_disable", "status", "compose"])
@pytest.mark.parametrize("option", ["--start-at-task", "--tags", "--skip-tags"])
def test_a_command_is_run_as_a_whole(playbook: str, option: str) -> None:
    refuse_task_options(playbook, {"tags": ["all"], "skip_tags": [], "step": True})
    given = {option.removeprefix("--").replace("-", "_"): ["x"]}
    with pytest.raises(
        UpgradeError, match=f"{option}: Ansible would skip what convoy.upgrade.{playbook} does"
    ) as refused:
        refuse_task_options(playbook, given)
    assert (refused.value.code, refused.value.details["option"]) == ("refused_option", option)
    # They may be tags of the playbook that imports it.
    refuse_task_options(playbook, given, is_imported=True)
