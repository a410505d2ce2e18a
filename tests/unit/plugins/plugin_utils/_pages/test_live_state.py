# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Parts of the state on the live page."""

from __future__ import annotations

import json
import shlex

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible_collections.convoy.upgrade.plugins.plugin_utils._pages.live_state import (
    bars_of,
    command,
    only_time_differs,
)
from hypothesis import given
from hypothesis import strategies as st


def test_a_command_names_the_playbook_and_its_variables() -> None:
    assert command("resume", {}) == "ansible-playbook convoy.upgrade.resume -i inventory.yml"
    assert command("retry", {"host": "web1,web2"}).endswith("-i inventory.yml -e host=web1,web2")


@given(
    st.dictionaries(
        st.sampled_from(("host", "stage")),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
        min_size=1,
    )
)
def test_a_shell_and_ansible_read_what_was_meant(variables: dict[str, str]) -> None:
    words = shlex.split(command("retry", variables))[4:]
    if words[1].startswith("{"):
        assert (words[0], json.loads(words[1].replace(": !unsafe ", ": "))) == ("-e", variables)
    else:
        assert dict(word.split("=", 1) for word in words[1::2]) == variables


@pytest.mark.parametrize("name", ["{{ lookup('pipe', 'id') }}", "{% set x = 1 %}", "{# x #}", 'a"b{{ 1 }}', "ü{{ 1 }}"])
def test_the_name_of_a_host_is_no_template_in_a_command_that_is_pasted(name: str) -> None:
    dash, text = shlex.split(command("retry", {"host": name}))[4:]
    found = DataLoader().load(text)
    assert (dash, found) == ("-e", {"host": name})
    # By the class of the text before ansible-core 2.19, by a tag since then.
    assert getattr(found["host"], "__UNSAFE__", False) or not _is_trusted(found["host"])


def _is_trusted(text: str) -> bool:
    try:
        from ansible.template import is_trusted_as_template
    except ImportError:
        return True
    return bool(is_trusted_as_template(text))


def test_the_bar_of_a_role_is_in_percent() -> None:
    states = {"upgraded": 1, "failed": 1, "lost": 1, "upgrading": 1, "held": 0, "pending": 4}
    (found,) = bars_of({"version": "2", "roles": {"web": {"hosts": 8, "states": states, "versions": {}}}})
    assert found["pieces"] == [("d", 0.0, 12.5), ("k", 12.5, 12.5), ("pf", 25.0, 25.0), ("w", 50.0, 50.0)]
    assert found["text"] == "1 upgraded, 1 failed, 1 lost, 1 upgrading, 4 pending"
    assert (
        bars_of({"version": "2", "roles": {"db": {"hosts": 0, "states": dict.fromkeys(states, 0), "versions": {}}}})[0][
            "pieces"
        ]
        == []
    )


def test_the_bar_of_a_job_has_the_states_of_jobs() -> None:
    states = {"upgraded": 1, "failed": 1, "lost": 0, "upgrading": 1, "held": 0, "pending": 4}
    (found,) = bars_of({"version": "job/j1", "roles": {"web": {"hosts": 7, "states": states, "versions": {}}}})
    assert found["text"] == "1 done, 1 failed, 1 running, 4 pending"


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"at": 9}, True),
        ({"rollout": {"seconds_left": 7, "epoch": 1}}, True),
        ({"rollout": {"epoch": 2}}, False),
        ({"error": "x"}, False),
    ],
)
def test_only_times_differ(other: dict[str, object], same: bool) -> None:
    state = {"at": 1, "error": "", "rollout": {"seconds_left": 3, "epoch": 1}}
    assert only_time_differs(state, {**state, **other}) is same
