# Copyright (c) 2026, the convoy.upgrade authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A hook gets the texts of an event unchanged, also texts that look like templates."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.convoy.upgrade.plugins.module_utils._common.sanitize import sanitize
from ansible_collections.convoy.upgrade.plugins.plugin_utils._notify.hook import Hook, as_data
from hypothesis import given
from hypothesis import strategies as st
from templates import trusted

# All texts of an event are printable.
TEXTS = st.text(st.characters(exclude_categories=("Cs",))).map(sanitize)
# Ansible evaluates this too.
OTHER = "#jinja2: variable_start_string:'[[', variable_end_string:']]'\n[[ 1 + 1 ]]"
VALUES = st.recursive(
    TEXTS | st.booleans() | st.integers(-(10**9), 10**9),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(TEXTS, below, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_value_survives_yaml(value: Any) -> None:
    assert DataLoader().load(f"event: {as_data(value)}") == {"event": value}


def test_texts_are_not_templates() -> None:
    event = {
        "version": "2",
        "stage": "",
        "at": "2026-11-22T05:50:01Z",
        "why": ["{{ 1 + 1 }}", "{% if", "null", "no", "{", OTHER],
    }
    loader = DataLoader()
    found = loader.load(trusted(f"event: {as_data(event)}"))
    assert found == {"event": event}
    assert Templar(loader, variables=found).template(found["event"]) == event


def test_a_hook_that_includes_a_role_that_is_not_found_says_so(tmp_path: Path) -> None:
    # Ansible sets no failed result then.
    file = tmp_path / "hook.yml"
    file.write_text("- name: Send it\n  ansible.builtin.include_role: {name: not_there}\n")
    arguments = ("-i", "localhost,", "-e", f"ansible_python_interpreter={sys.executable}")
    failed = Hook(str(file), arguments, str(tmp_path), 60).call({"event": "paused"})
    assert failed is not None
    assert failed.why == "it includes a role or a file that can not be found or read"
