# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The steps and their tags."""

from __future__ import annotations

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._services.steps import (
    NUMBERED,
    POST,
    STEPS,
    file_of,
    no_step,
    step_of,
    step_of_tag,
    tags_of,
)

ALL = (
    "Tag it with one of step0 (validate), step1 (prepare), step2 (stop), step3 (upgrade), step4 (start), step5 (verify), "
    "may_stop, drain, undrain."
)


@pytest.mark.parametrize(
    ("tags", "step"),
    [
        *(((f"step{number}",), step) for number, step in enumerate(NUMBERED)),
        *(((step,), step) for step in STEPS),
        (("step3", "upgrade", "nginx"), "upgrade"),
        (("nginx", "Stop", "mystep2"), None),
        ((), None),
    ],
)
def test_a_number_and_a_name_mean_the_same_step(tags: tuple[str, ...], step: str | None) -> None:
    assert step_of(tags, "f:1") == step


@pytest.mark.parametrize("tag", ["step6", "step", "step-1", "step_3", "Step3", "STEP3", "step3.5", "stepX", "step999"])
def test_a_step_out_of_range_is_refused(tag: str) -> None:
    with pytest.raises(UpgradeError) as caught:
        step_of_tag(tag, "f:7")
    assert (caught.value.code, caught.value.message) == ("bad_service", f"f:7: there is no step {tag!r}. {ALL}")
    assert caught.value.details == {"where": "f:7"}


def test_two_steps_are_refused() -> None:
    with pytest.raises(UpgradeError) as caught:
        step_of(["step2", "x", "start"], "f:7")
    assert caught.value.message == ("f:7: the task has two steps, stop and start. Keep one of them, or split the task.")


@pytest.mark.parametrize(
    ("tags", "meant"),
    [
        ([], ""),
        (["nginx"], ""),
        (["upgrad"], " Its tag 'upgrad' is not a step; did you mean 'upgrade'?"),
        (
            ["upgrad", "x", "verfy"],
            " Its tag 'upgrad' is not a step; did you mean 'upgrade'? Its tag 'verfy' is not a step; did you mean 'verify'?",
        ),
    ],
)
def test_without_a_step_the_nearest_one_is_named(tags: list[str], meant: str) -> None:
    assert str(no_step(tags, "f:7")) == f"f:7: the task has no step, so it would never run.{meant} {ALL}"


def test_files_and_tags_of_a_step() -> None:
    assert [file_of(step) for step in (*STEPS, POST)] == [
        "step0_validate", "step1_prepare", "step2_may_stop", "step2_drain", "step2_stop", "step3_upgrade", "step4_start", "step5_verify",
        "step5_undrain", "post_upgrade",
    ]  # fmt: skip
    assert (tags_of("drain"), tags_of("undrain")) == (["step2", "stop", "drain"], ["step5", "verify", "undrain"])
    assert (tags_of("stop"), tags_of(POST)) == (["step2", "stop"], ["post_upgrade"])
