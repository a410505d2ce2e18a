# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A run that comes second waits for the first one, until its deadline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common import runtime
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.plugin_utils._actions.other_action import ActionFailed
from ansible_collections.convoy.upgrade.plugins.plugin_utils._wait.other_rollout import when_free


class Clock(runtime.Runtime):
    """A clock that only sleeping moves."""

    seconds = 1000.0

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock() -> Iterator[Clock]:
    found = Clock()
    before = runtime.use(found)
    yield found
    runtime.use(before)


def refused(code: str, who: str = "The job a-1") -> dict[str, Any]:
    return UpgradeError(code, f"{who} is under way. So nothing is changed.").as_result()


@pytest.mark.parametrize("raises", [False, True])
def test_it_tries_again_until_the_other_one_is_over_and_names_each_once(*, raises: bool, clock: Clock) -> None:
    answers = iter([refused("job_under_way"), refused("job_under_way"), refused("rollout_under_way", "2.1"), {"a": 1}])
    printed: list[str] = []

    def attempt() -> dict[str, Any]:
        found = next(answers)
        if raises and "failed" in found:
            raise ActionFailed(found)
        return found

    assert when_free(attempt, clock.seconds + 600, printed.append) == {"a": 1}
    assert printed == [f"{who} is under way. This run waits for its end." for who in ("The job a-1", "2.1")]
    assert clock.seconds == 1000 + 5 + 7.5 + 11.25


def test_at_the_deadline_and_for_other_reasons_the_failure_remains(clock: Clock) -> None:
    printed: list[str] = []
    assert when_free(lambda: refused("aborted"), clock.seconds + 600, printed.append)["failure"]["code"] == "aborted"
    assert clock.seconds == 1000

    def fail() -> dict[str, Any]:
        raise ActionFailed(refused("job_under_way"))

    with pytest.raises(ActionFailed) as failed:
        when_free(fail, clock.seconds + 60, printed.append)
    assert failed.value.result["failure"]["code"] == "job_under_way"
    assert 1030 < clock.seconds < 1060


def test_an_outage_of_consul_ends_a_wait_that_has_begun_only_at_the_deadline(clock: Clock) -> None:
    down = UpgradeError("unreachable", "Consul can't be reached.").as_result()
    answers = iter([refused("job_under_way"), down, down, refused("job_under_way"), {"a": 1}])
    printed: list[str] = []
    assert when_free(lambda: next(answers), clock.seconds + 600, printed.append) == {"a": 1}
    waits = "The job a-1 is under way. This run waits for its end."
    assert printed == [waits, "Consul can't be reached. This run goes on waiting.", waits]
    # Before anything waits, it is a mistake, reported at once.
    assert when_free(lambda: down, clock.seconds + 600, printed.append) == down
