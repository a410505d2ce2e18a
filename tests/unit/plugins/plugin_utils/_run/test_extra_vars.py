# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Words on the command line that belong to no variable, because the shell removed their quotes."""

from __future__ import annotations

import json
import shlex

import pytest
from ansible.parsing.splitter import parse_kv
from ansible_collections.convoy.upgrade.plugins.module_utils._common.errors import UpgradeError
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import as_option
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.extra_vars import refuse_leftovers
from ansible_collections.convoy.upgrade.plugins.plugin_utils._run.known_variables import VARIABLES


@pytest.mark.parametrize(
    "given",
    [
        "version=2.0",
        "reason='two words' by=ann",
        "reason=words by=ann ansible_user=ann",
        "reason='two words' mine=1",
        "mine=1 reason=words",
        'reason="ann\'s disk"',
        "reason=",
        '{"reason": "two words"}',
        "{reason: two words}",
        "@some file.yml",
        "",
    ],
)
def test_complete_values_are_accepted(given: str) -> None:
    refuse_leftovers([given], VARIABLES)


def test_a_variable_that_is_known_may_follow_a_reason() -> None:
    refuse_leftovers(["reason=disk mine=1"], VARIABLES | {"mine"})
    with pytest.raises(UpgradeError):
        refuse_leftovers(["reason=disk mine=1"], VARIABLES)


@pytest.mark.parametrize(
    ("given", "write"),
    [
        ("reason=two words", "-e \"reason='two words'\""),
        ("reason=two words by=ann", "-e \"reason='two words' by=ann\""),
        ("reason=disk ticket=OPS-12", "-e \"reason='disk ticket=OPS-12'\""),
        ("host=web1 reason=a disk is changed", "-e \"host=web1 reason='a disk is changed'\""),
        ('reason=costs $5 "for" all', """-e '{"reason": "costs $5 \\"for\\" all"}'"""),
    ],
)
def test_leftovers_are_refused_with_the_quoting_that_ansible_reads(given: str, write: str) -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_leftovers(["version=2.0", given], VARIABLES)
    assert refused.value.code == "leftover_arguments"
    own = "give each variable a -e of its own, or " if "ticket=" in given else ""
    assert refused.value.message.endswith(f"Nothing was done: {own}write {write}")


def test_words_before_any_variable_are_refused_too() -> None:
    with pytest.raises(UpgradeError, match="'words' belongs to no variable"):
        refuse_leftovers(["words"], VARIABLES)


def test_control_characters_of_leftovers_are_not_printed() -> None:
    with pytest.raises(UpgradeError) as refused:
        refuse_leftovers(["reason=two \x1b[2Jwords"], VARIABLES)
    assert refused.value.message.isprintable()


@pytest.mark.parametrize("value", ["plain", "two words", "", "ann: [disk] 5%", 'it\'s $HOME `x` "y" \\ !'])
def test_an_option_gives_its_value_through_shell_and_ansible(value: str) -> None:
    _dash, text = shlex.split(as_option({"reason": value}))
    assert (json.loads(text) if text.startswith("{") else parse_kv(text)) == {"reason": value}
