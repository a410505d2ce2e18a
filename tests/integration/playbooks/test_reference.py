# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What ansible-doc says is so: every option is used, every result is what is documented.

This file runs last, as it looks back on what all others have used and seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args

import pytest
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import Code
from integration.support.runs.coverage import INVENTORY, LOOKUP, MODULES, Coverage, documentation, documented_paths

# Results whose keys below are names of hosts or roles, and not of the documentation.
_BY_NAME = ("hosts", "roles")


@pytest.mark.thorough
@pytest.mark.usefixtures("whole_session")
@pytest.mark.parametrize(
    ("plugin", "kind"), [*((name, "module") for name in MODULES), (LOOKUP, "lookup"), (INVENTORY, "inventory")]
)
def test_every_documented_option_is_used_by_a_test(plugin: str, kind: str, seen: Coverage) -> None:
    documented = set(documentation(plugin, kind)["doc"]["options"])
    assert documented - seen.options[plugin] == set()


@pytest.mark.thorough
@pytest.mark.usefixtures("whole_session")
@pytest.mark.parametrize("plugin", MODULES)
def test_results_are_documented_and_what_is_documented_is_returned(plugin: str, seen: Coverage) -> None:
    contents: dict[str, Any] = documentation(plugin, "module")["return"]
    documented = set(documented_paths(contents))
    returned = set(_down_to(contents, seen.returned[plugin]))
    assert documented - returned == set(), "documented, and never seen"
    assert returned - documented == set(), "seen, and not documented"


@pytest.mark.thorough
@pytest.mark.usefixtures("whole_session")
def test_every_failure_that_was_seen_has_a_code_that_is_known(seen: Coverage) -> None:
    assert seen.failures, "no test has failed on purpose"
    assert {code for code, _message in seen.failures} <= set(get_args(Code))


def _down_to(contents: dict[str, Any], paths: Iterable[str]) -> Iterable[str]:
    """Return the paths as deep as the documentation goes."""
    for path in paths:
        first, _dot, rest = path.partition(".")
        yield first
        below = contents.get(first, {}).get("contains") or {}
        if first in _BY_NAME:
            # Names of hosts may have dots too, so what is no field is a part of one.
            last = rest.rpartition(".")[2]
            if last in below:
                yield f"{first}.{last}"
        elif below and rest:
            yield from (f"{first}.{one}" for one in _down_to(below, [rest]))
