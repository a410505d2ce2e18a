# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tasks that tags on the command line select."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.playbook.taggable import Taggable
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._compose.tag_selection import (
    is_selected,
    is_task_selected,
    refuse_empty,
)
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import tags_of
from hypothesis import given
from hypothesis import strategies as st
from written_services import POST, TASKS, Roles

TAGS = st.lists(st.sampled_from(("a", "b", "always", "never")), unique=True)
OPTION = st.lists(st.sampled_from(("a", "b", "always", "never", "all", "tagged", "untagged")), unique=True)


class Task(Taggable):
    """A task with only its tags."""

    def __init__(self, tags: list[str]) -> None:
        self.tags = tags
        self._loader = None
        self._parent = None

    def get_play(self) -> None:
        """Belong to no play."""


@given(TAGS, OPTION.map(lambda found: found or ["all"]), OPTION)
def test_it_is_ansibles_own_rule(tags: list[str], only: list[str], skip: list[str]) -> None:
    assert is_selected(tags, only, skip) == Task(tags).evaluate_tags(frozenset(only), frozenset(skip), {})


@pytest.mark.parametrize(
    ("step", "only", "skip", "is_run"),
    [
        ("undrain", "verify", "", True),
        ("undrain", "all", "verify,step5", True),
        ("undrain", "all", "undrain", False),
        ("undrain", "all", "web", False),
        ("verify", "all", "verify", False),
        ("drain", "all", "stop", False),
    ],
)
def test_a_host_that_skips_its_verification_is_undrained(step: str, only: str, skip: str, *, is_run: bool) -> None:
    assert is_task_selected([*tags_of(step), "web"], [only], skip.split(",")) == is_run


@pytest.mark.parametrize(
    ("only", "skip", "left"),
    [
        ([], [], True),
        (["all"], [], True),
        (["inner"], [], True),
        (["step3"], [], True),
        (["upgrade"], ["web"], False),
        (["web"], [], True),
        (["db"], [], False),
        (["all"], ["inner"], True),
        (["all"], ["inner", "other"], False),
        (["all"], ["first", "inner", "other"], False),
        (["post_upgrade"], ["first"], True),
    ],
)
def test_each_task_counts_for_itself(tmp_path: Path, only: list[str], skip: list[str], left: bool) -> None:
    roles = Roles(tmp_path)
    block = "- tags: upgrade\n  block:\n    - {tags: inner, x: 1}\n    - {tags: other, x: 2}\n"
    roles.add("web", {TASKS: block})
    if "post_upgrade" in only:
        roles.add("web", {POST: "- {x: 1, tags: first}\n- {x: 2}\n"})
    composition = roles.compose({"node": ["web"]})
    if left:
        refuse_empty(composition, only, skip)
        return
    with pytest.raises(UpgradeError) as caught:
        refuse_empty(composition, only, skip)
    options = [
        f"{name} {','.join(tags)}"
        for name, tags in (("--tags", only), ("--skip-tags", skip))
        if tags != ["all"] and tags
    ]
    assert caught.value.code == "no_such_tag"
    assert caught.value.message == (
        f"{' '.join(options)}: these tags select no task of any service, so nothing would be done. The known tags are inner, other, "
        "step3, upgrade, web."
    )


def test_without_services_no_tag_is_wrong(tmp_path: Path) -> None:
    assert refuse_empty(Roles(tmp_path).compose({"node": None}), ["nonsense"], []) is None
